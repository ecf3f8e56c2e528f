/** The dialog about the account: how it calls, its alias, password and keys, and the ways out. */

import { useRef, useState } from "preact/hooks";
import { Dialog, ask } from "./dialog";
import { Field } from "./login";
import { type Calls, allowed, calls, setCalls } from "./notify";
import { forget } from "./place";
import { attempt, closeDialogs, engine, say, useView } from "./store";
import { called } from "./text";

export function AccountDialog() {
  const account = useView().account;
  if (!account) return null;
  return (
    <Dialog title={called(account.username)}>
      <Notifications />
      <Profile alias={account.alias} />
      <section>
        <h3>Your key</h3>
        <p class="fingerprint">{account.fingerprint.replace(/(.{8})/g, "$1 ")}</p>
        <p class="hint">It never leaves this device.</p>
        <button type="button" onClick={askForKeys}>
          Make new keys
        </button>
      </section>
      <Password username={account.username} />
      <section>
        <h3>Ways out</h3>
        <div class="actions start">
          <button type="button" onClick={logOut}>
            Log out
          </button>
          <button type="button" class="danger" onClick={() => deleteAccount(account.username)}>
            Delete the account
          </button>
        </div>
      </section>
    </Dialog>
  );
}

const CALLS: [Calls, string][] = [
  ["off", "Never"],
  ["quiet", "Say that there is a message, not what it says"],
  ["text", "Show who writes what"],
];

function Notifications() {
  const [chosen, setChosen] = useState(calls());
  const choose = async (value: Calls) => {
    await setCalls(value);
    setChosen(calls());
  };
  return (
    <section>
      <fieldset>
        <legend>Notifications, while you are not looking</legend>
        {CALLS.map(([value, label]) => (
          <label class="check" key={value}>
            <input type="radio" name="calls" checked={chosen === value} onChange={() => choose(value)} /> {label}
          </label>
        ))}
      </fieldset>
      <p class="hint" role="status">
        {allowed() === "denied"
          ? "This browser does not let the page notify you: allow it in its settings."
          : "Only while this page is open somewhere. What a device was told, it may keep."}
      </p>
    </section>
  );
}

function Profile({ alias }: { alias: string }) {
  const form = useRef<HTMLFormElement>(null);
  const save = async () => {
    await engine.setAlias(String(new FormData(form.current!).get("alias")).trim());
    say("Changed.");
  };
  return (
    <section>
      <form class="row" ref={form} onSubmit={(event) => (event.preventDefault(), void attempt(save()))}>
        <Field
          name="alias"
          label="Alias"
          value={alias}
          hint="Up to 64 letters. The server can read it"
          autocomplete="nickname"
        />
        <button type="submit">Save</button>
      </form>
    </section>
  );
}

function Password({ username }: { username: string }) {
  const form = useRef<HTMLFormElement>(null);
  const save = async () => {
    const data = new FormData(form.current!);
    await engine.changePassword(String(data.get("current")), String(data.get("next")));
    form.current?.reset();
    say("The password is changed. All other sessions have ended.");
  };
  return (
    <section>
      <h3>Password</h3>
      <form ref={form} onSubmit={(event) => (event.preventDefault(), void attempt(save()))}>
        <Username name={username} />
        <Field name="current" label="The one of now" type="password" autocomplete="current-password" />
        <Field
          name="next"
          label="The new one"
          type="password"
          autocomplete="new-password"
          hint="At least 8 characters"
        />
        <button type="submit">Change</button>
      </form>
    </section>
  );
}

/** Tells a password manager whose password is asked for. */
function Username({ name }: { name: string }) {
  return (
    <input class="sr" type="text" autocomplete="username" value={name} readOnly tabIndex={-1} aria-hidden="true" />
  );
}

function askForKeys(): void {
  ask({
    title: "Make new keys?",
    text: "For when others may have yours. What was sent to you and is not here yet is lost, and the others have to compare your key anew.",
    action: "Make new keys",
    isDanger: true,
    act: () => engine.resetKeys(),
  });
}

async function gone(promise: Promise<unknown>): Promise<void> {
  await promise;
  localStorage.clear();
  sessionStorage.clear();
  closeDialogs();
  forget();
}

function logOut(): void {
  ask({
    title: "Log out?",
    text: "All messages and keys that this browser keeps are erased. What was said so far cannot be read here again.",
    action: "Log out and erase",
    isDanger: true,
    act: () => gone(engine.logout()),
  });
}

/** Erases what is here of an account whose session has ended. */
export function eraseAll(username: string): void {
  ask({
    title: "Erase everything?",
    text: `All messages and keys of ${called(username)} that this browser keeps are erased. They cannot be read here again.`,
    action: "Erase",
    isDanger: true,
    act: () => gone(engine.logout()),
  });
}

function deleteAccount(username: string): void {
  const password = { text: "" };
  ask({
    title: "Delete the account?",
    text: (
      <>
        Your messages, memberships and sessions go from the server, and all that is here. It cannot be undone.
        <form
          onInput={(event) => (password.text = (event.target as HTMLInputElement).value)}
          onSubmit={(event) => event.preventDefault()}
        >
          <Username name={username} />
          <Field name="confirm" label="Your password" type="password" autocomplete="current-password" />
        </form>
      </>
    ),
    action: "Delete for good",
    isDanger: true,
    act: () => gone(engine.deleteAccount(password.text)),
  });
}
