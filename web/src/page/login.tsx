/** The login screen, and the form that creates an account. */

import { useId, useRef, useState } from "preact/hooks";
import { CommandError } from "../engine/api";
import { confirmErasure, confirmReplacement } from "./account";
import { confirmAction } from "./dialog";
import { engine, errorText, useView } from "./store";

const MIN_PASSWORD = 8;
const USERNAME = /^[a-zA-Z0-9][a-zA-Z0-9_]{0,63}$/;

export function Login() {
  const [isNew, setNew] = useState(false);
  const [needsToken, setNeedsToken] = useState(false);
  const [fault, setFault] = useState("");
  const [isBusy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const { account } = useView();

  const fail = (text: string, field?: string) => {
    setFault(text);
    form.current?.querySelector<HTMLInputElement>(`input[name=${field ?? "username"}]`)?.focus();
  };

  const enter = async (username: string, password: string, token: string) => {
    if (isNew) return engine.register(username, password, token || undefined);
    if ((await engine.login(username, password)) === "in") return;
    confirmAction({
      title: "Use this device instead?",
      text: (
        <>
          Your account is in use on another device, and it can have only one. If you continue, this browser creates new
          keys and replaces that device. Earlier messages cannot be read here, and others see that your key changed.
        </>
      ),
      action: "Use this device",
      act: () => engine.login(username, password, true),
    });
  };

  const submit = async (event: Event) => {
    event.preventDefault();
    if (isBusy) return;
    const data = new FormData(form.current!);
    const read = (name: string) => String(data.get(name) ?? "");
    const [username, password] = [read("username").trim(), read("password")];
    if (!USERNAME.test(username))
      return fail("A username has up to 64 letters a-z, digits and _, and cannot start with _.");
    if (!password) return fail("Enter your password.", "password");
    if (isNew && [...password].length < MIN_PASSWORD)
      return fail(`A password has at least ${MIN_PASSWORD} characters.`, "password");
    if (isNew && password !== read("again")) return fail("The passwords do not match.", "again");
    const token = read("token").trim();
    if (!account || account.username === username) return proceed(username, password, token);
    confirmReplacement(account.username, () => void proceed(username, password, token));
  };

  const proceed = async (username: string, password: string, token: string) => {
    setFault("");
    setBusy(true);
    try {
      await enter(username, password, token);
    } catch (error) {
      const isForbidden = error instanceof CommandError && error.fault.kind === "forbidden";
      if (isForbidden && isNew) setNeedsToken(true);
      fail(errorText(error), isForbidden && isNew ? "token" : undefined);
    }
    setBusy(false);
  };

  const switchForm = () => {
    setNew(!isNew);
    setFault("");
  };

  return (
    <main class="entry">
      <form ref={form} onSubmit={submit} novalidate>
        <img src="/icon.svg" alt="" width="64" height="64" />
        <h1>Conclave</h1>
        <p class="muted">End-to-end encrypted messages that disappear on time.</p>
        <p role="alert" class={fault ? "fault" : ""}>
          {fault}
        </p>
        <Field name="username" label="Username" autocomplete="username" autocapitalize="none" autofocus />
        <Field
          name="password"
          label="Password"
          type="password"
          autocomplete={isNew ? "new-password" : "current-password"}
          hint={isNew ? `At least ${MIN_PASSWORD} characters. Only the server's operator can reset it.` : undefined}
        />
        {isNew && <Field name="again" label="Repeat password" type="password" autocomplete="new-password" />}
        {isNew && needsToken && (
          <Field name="token" label="Registration token" hint="Ask the server's operator for it." />
        )}
        <button class="primary wide" type="submit" aria-busy={isBusy}>
          {isBusy ? "Please wait…" : isNew ? "Create account" : "Log in"}
        </button>
        <button class="link wide" type="button" onClick={switchForm}>
          {isNew ? "Already have an account? Log in" : "New here? Create an account"}
        </button>
        {account && (
          <button class="link wide" type="button" onClick={() => confirmErasure(account.username)}>
            Erase local data
          </button>
        )}
      </form>
    </main>
  );
}

interface FieldProps {
  name: string;
  label: string;
  hint?: string;
  type?: "text" | "password" | "search";
  value?: string;
  autocomplete?: string;
  autocapitalize?: "none";
  autofocus?: boolean;
}

/** A field with its label above it. */
export function Field({ name, label, hint, type = "text", value, ...rest }: FieldProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        name={name}
        defaultValue={value}
        aria-describedby={hint ? `${id}-hint` : undefined}
        spellcheck={false}
        {...({ type, ...rest } as object)}
      />
      {hint && (
        <p id={`${id}-hint`} class="hint">
          {hint}
        </p>
      )}
    </div>
  );
}
