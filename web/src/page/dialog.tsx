/** Modal dialogs. The browser's dialog element keeps the focus inside and closes on Escape. */

import { createContext, type ComponentChildren } from "preact";
import { useContext, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons";
import { attempt, closeDialog, dialogClosed, hideToast, openDialog, useDialogs, useToast } from "./store";

/** The id of the surrounding dialog. */
const DialogId = createContext(0);

export function Dialogs() {
  return (
    <>
      {useDialogs().map(({ id, render }) => (
        <DialogId.Provider key={id} value={id}>
          {render()}
        </DialogId.Provider>
      ))}
    </>
  );
}

export function Dialog({ title, children }: { title: ComponentChildren; children: ComponentChildren }) {
  const id = useId();
  const dialogId = useContext(DialogId);
  const isTopmost = useDialogs().at(-1)?.id === dialogId;
  const ref = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => ref.current!.showModal(), []);
  return (
    <dialog
      ref={ref}
      aria-labelledby={id}
      onClose={() => dialogClosed(dialogId)}
      onPointerDown={(event) => event.target === ref.current && ref.current!.close()}
    >
      <div class="dialog">
        <header>
          <h2 id={id}>{title}</h2>
          <button class="icon" aria-label="Close" type="button" onClick={closeDialog}>
            <Icon name="close" />
          </button>
        </header>
        <div class="body">{children}</div>
      </div>
      {isTopmost && <Toast />}
    </dialog>
  );
}

/** Rendered in the topmost dialog, if there is one: a modal dialog hides and disables everything behind it. */
export function Toast() {
  const toast = useToast();
  return (
    <div class="toasts" role={toast?.isError ? "alert" : "status"}>
      {toast && (
        <div class={toast.isError ? "toast fault" : "toast"}>
          <p>{toast.text}</p>
          <button class="icon" type="button" aria-label="Close" onClick={hideToast}>
            <Icon name="close" />
          </button>
        </div>
      )}
    </div>
  );
}

interface Question {
  title: string;
  text: ComponentChildren;
  /** The label of the button, and what it does. */
  action: string;
  act: () => Promise<unknown>;
  isDanger?: boolean;
  /** Called after success. */
  done?: () => void;
}

/** Opens a dialog that asks before an action. */
export function confirmAction(question: Question): void {
  openDialog(() => <Confirmation {...question} />);
}

function Confirmation({ title, text, action, act, isDanger, done }: Question) {
  return (
    <Dialog title={title}>
      <div>{text}</div>
      <div class="actions">
        <button type="button" onClick={closeDialog}>
          Cancel
        </button>
        <Action
          class={isDanger ? "danger" : "primary"}
          autofocus
          act={async () => {
            await act();
            closeDialog();
            done?.();
          }}
        >
          {action}
        </Action>
      </div>
    </Dialog>
  );
}

interface ActionProps {
  act: () => Promise<unknown>;
  children: ComponentChildren;
  class?: string;
  autofocus?: boolean;
  disabled?: boolean;
  label?: string;
}

/** A button that is busy until its action has finished, and shows a toast if it fails. */
export function Action({ act, children, label, disabled, ...rest }: ActionProps) {
  const [isBusy, setBusy] = useState(false);
  const onClick = async () => {
    if (isBusy) return;
    setBusy(true);
    await attempt(act());
    setBusy(false);
  };
  return (
    <button type="button" {...rest} aria-label={label} aria-busy={isBusy} disabled={disabled} onClick={onClick}>
      {children}
    </button>
  );
}
