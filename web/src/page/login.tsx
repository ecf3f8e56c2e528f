/** The first screen: log in, or create an account. */

import { useId, useRef, useState } from "preact/hooks";
import { Failed } from "../engine/api";
import { eraseAll } from "./account";
import { ask } from "./dialog";
import { engine, useView, why } from "./store";

const LEAST_PASSWORD = 8;
const NAME = /^[a-zA-Z0-9][a-zA-Z0-9_]{0,63}$/;

export function Login() {
  const [isNew, setNew] = useState(false);
  const [wantsToken, setWantsToken] = useState(false);
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
    ask({
      title: "Use this device instead?",
      text: (
        <>
          Your account has its keys on another device, and it has one device at a time. If you go on, this browser makes
          new keys and takes the other one's place. What was said before cannot be read here, and the others are told
          that your key has changed.
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
    if (!NAME.test(username))
      return fail("A name has up to 64 letters a to z, digits and _, and does not begin with _.");
    if (!password) return fail("A password is missing.", "password");
    if (isNew && [...password].length < LEAST_PASSWORD)
      return fail(`A password has at least ${LEAST_PASSWORD} characters.`, "password");
    if (isNew && password !== read("again")) return fail("The passwords differ: type the same twice.", "again");
    setFault("");
    setBusy(true);
    try {
      await enter(username, password, read("token").trim());
    } catch (error) {
      const isForbidden = error instanceof Failed && error.fault.kind === "forbidden";
      if (isForbidden && isNew) setWantsToken(true);
      fail(why(error), isForbidden && isNew ? "token" : undefined);
    }
    setBusy(false);
  };

  const change = () => {
    setNew(!isNew);
    setFault("");
  };

  return (
    <main class="entry">
      <form ref={form} onSubmit={submit} novalidate>
        <img src="/icon.svg" alt="" width="64" height="64" />
        <h1>Conclave</h1>
        <p class="muted">Messages that only members can read, and that go on time.</p>
        <p role="alert" class={fault ? "fault" : ""}>
          {fault}
        </p>
        <Field name="username" label="Name" autocomplete="username" autocapitalize="none" autofocus />
        <Field
          name="password"
          label="Password"
          type="password"
          autocomplete={isNew ? "new-password" : "current-password"}
          hint={isNew ? "At least 8 characters. Nobody can reset it for you but the operator." : undefined}
        />
        {isNew && <Field name="again" label="The same password again" type="password" autocomplete="new-password" />}
        {isNew && wantsToken && (
          <Field name="token" label="Registration token" hint="The operator of this server gives it to you." />
        )}
        <button class="primary wide" type="submit" aria-busy={isBusy}>
          {isBusy ? "Just a moment…" : isNew ? "Create account" : "Log in"}
        </button>
        <button class="link wide" type="button" onClick={change}>
          {isNew ? "I have an account: log in" : "New here? Create an account"}
        </button>
        {account && (
          <button class="link wide" type="button" onClick={() => eraseAll(account.username)}>
            Erase what this browser keeps
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
