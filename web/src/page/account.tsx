/** The dialog for the account: notifications, alias, keys, password, log out, delete. */

import { useRef, useState } from "preact/hooks";
import { Dialog, confirmAction } from "./dialog";
import { Field } from "./login";
import { type NotificationMode, notificationMode, permission, setNotificationMode } from "./notify";
import { closeConversation } from "./place";
import { attempt, closeAllDialogs, engine, showToast, useView } from "./store";
import { displayName } from "./text";

export function AccountDialog() {
  const account = useView().account;
  if (!account) return null;
  return (
    <Dialog title={displayName(account.username)}>
      <Notifications />
      <Profile alias={account.alias} />
      <section>
        <h3>Your key</h3>
        <p class="fingerprint">{account.fingerprint.replace(/(.{8})/g, "$1 ")}</p>
        <p class="hint">The fingerprint of your public key. The private key never leaves this device.</p>
        <button type="button" onClick={confirmKeyReset}>
          Reset keys
        </button>
      </section>
      <Password username={account.username} />
      <section>
        <h3>Log out or delete</h3>
        <div class="actions start">
          <button type="button" onClick={confirmLogOut}>
            Log out
          </button>
          <button type="button" class="danger" onClick={() => confirmDeletion(account.username)}>
            Delete account
          </button>
        </div>
      </section>
    </Dialog>
  );
}

const MODES: [NotificationMode, string][] = [
  ["off", "Off"],
  ["quiet", "Without names and text"],
  ["text", "With sender and text"],
];

function Notifications() {
  const [mode, setMode] = useState(notificationMode());
  const choose = async (value: NotificationMode) => {
    await setNotificationMode(value);
    setMode(notificationMode());
  };
  return (
    <section>
      <fieldset>
        <legend>Notifications</legend>
        {MODES.map(([value, label]) => (
          <label class="check" key={value}>
            <input type="radio" name="mode" checked={mode === value} onChange={() => choose(value)} /> {label}
          </label>
        ))}
      </fieldset>
      <p class="hint" role="status">
        {permission() === "denied"
          ? "Notifications are blocked. Allow them in the browser's settings."
          : "Shown while this page is open in the background. Your device may keep a copy of them."}
      </p>
    </section>
  );
}

function Profile({ alias }: { alias: string }) {
  const form = useRef<HTMLFormElement>(null);
  const save = async () => {
    await engine.setAlias(String(new FormData(form.current!).get("alias")).trim());
    showToast("Alias saved.");
  };
  return (
    <section>
      <form class="row" ref={form} onSubmit={(event) => (event.preventDefault(), void attempt(save()))}>
        <Field
          name="alias"
          label="Alias"
          value={alias}
          hint="Up to 64 characters, visible to the server"
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
    showToast("Password changed. All other sessions have ended.");
  };
  return (
    <section>
      <h3>Password</h3>
      <form ref={form} onSubmit={(event) => (event.preventDefault(), void attempt(save()))}>
        <Username name={username} />
        <Field name="current" label="Current password" type="password" autocomplete="current-password" />
        <Field
          name="next"
          label="New password"
          type="password"
          autocomplete="new-password"
          hint="At least 8 characters"
        />
        <button type="submit">Change password</button>
      </form>
    </section>
  );
}

/** An invisible field that tells password managers the user name. */
function Username({ name }: { name: string }) {
  return (
    <input class="sr" type="text" autocomplete="username" value={name} readOnly tabIndex={-1} aria-hidden="true" />
  );
}

function confirmKeyReset(): void {
  confirmAction({
    title: "Reset your keys?",
    text: "Do this if someone else may have your keys. Messages that have not arrived yet are lost, and others must compare your key again.",
    action: "Reset keys",
    isDanger: true,
    act: () => engine.resetKeys(),
  });
}

/** Waits for a command that erases the engine's data, and erases that of the page. */
async function eraseAfter(promise: Promise<unknown>): Promise<void> {
  await promise;
  localStorage.clear();
  sessionStorage.clear();
  closeAllDialogs();
  closeConversation();
}

function confirmLogOut(): void {
  confirmAction({
    title: "Log out?",
    text: "This erases all messages and keys from this browser. Earlier messages cannot be read here again.",
    action: "Log out and erase",
    isDanger: true,
    act: () => eraseAfter(engine.logout()),
  });
}

/** Asks whether to erase the local data of an account whose session has ended. */
export function confirmErasure(username: string): void {
  confirmAction({
    title: "Erase local data?",
    text: `This erases all messages and keys of ${displayName(username)} from this browser. They cannot be restored.`,
    action: "Erase",
    isDanger: true,
    act: () => eraseAfter(engine.logout()),
  });
}

/** Asks whether to log in to another account, which erases the local data of the one whose session has ended. */
export function confirmReplacement(username: string, done: () => void): void {
  const name = displayName(username);
  confirmAction({
    title: `Erase the data of ${name}?`,
    text: `This browser has messages and keys of ${name}, and can have only one account. A login to another one erases them. They cannot be restored.`,
    action: "Erase and continue",
    isDanger: true,
    act: async () => undefined,
    done,
  });
}

function confirmDeletion(username: string): void {
  const password = { text: "" };
  confirmAction({
    title: "Delete your account?",
    text: (
      <>
        This deletes your messages, memberships and sessions from the server, and all data in this browser. It cannot
        be undone.
        <form
          onInput={(event) => (password.text = (event.target as HTMLInputElement).value)}
          onSubmit={(event) => event.preventDefault()}
        >
          <Username name={username} />
          <Field name="confirm" label="Your password" type="password" autocomplete="current-password" />
        </form>
      </>
    ),
    action: "Delete permanently",
    isDanger: true,
    act: () => eraseAfter(engine.deleteAccount(password.text)),
  });
}
