/** Dialogs: the browser's own, which keeps the focus within and closes by Escape. */

import { createContext, type ComponentChildren } from "preact";
import { useContext, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons";
import { attempt, closeDialog, dialogClosed, openDialog, useDialogs } from "./store";

/** The id of the dialog that something is in. */
const Within = createContext(0);

export function Dialogs() {
  return (
    <>
      {useDialogs().map(({ id, draw }) => (
        <Within.Provider key={id} value={id}>
          {draw()}
        </Within.Provider>
      ))}
    </>
  );
}

export function Dialog({ title, children }: { title: ComponentChildren; children: ComponentChildren }) {
  const id = useId();
  const opened = useContext(Within);
  const ref = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => ref.current!.showModal(), []);
  return (
    <dialog
      ref={ref}
      aria-labelledby={id}
      onClose={() => dialogClosed(opened)}
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
    </dialog>
  );
}

interface Question {
  title: string;
  text: ComponentChildren;
  /** What the button says, and what it does. */
  action: string;
  act: () => Promise<unknown>;
  isDanger?: boolean;
  /** Called once it is done. */
  done?: () => void;
}

/** Asks before something is done. */
export function ask(question: Question): void {
  openDialog(() => <Asking {...question} />);
}

function Asking({ title, text, action, act, isDanger, done }: Question) {
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
            if (!(await attempt(act()))) return;
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

interface Acting {
  act: () => Promise<unknown>;
  children: ComponentChildren;
  class?: string;
  autofocus?: boolean;
  disabled?: boolean;
  label?: string;
}

/** A button that is busy while what it does is under way. */
export function Action({ act, children, label, disabled, ...rest }: Acting) {
  const [isBusy, setBusy] = useState(false);
  const begin = async () => {
    if (isBusy) return;
    setBusy(true);
    await attempt(act());
    setBusy(false);
  };
  return (
    <button type="button" {...rest} aria-label={label} aria-busy={isBusy} disabled={disabled} onClick={begin}>
      {children}
    </button>
  );
}
