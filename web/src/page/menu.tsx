/** The menu of a message: reply, copy, take back. */

import type { Group, Message } from "../engine/api";
import { Dialog, confirmAction } from "./dialog";
import { Icon } from "./icons";
import { closeDialog, engine, showToast, useView } from "./store";
import { displayName } from "./text";
import { dateAndTime, useNextExpiry } from "./time";

interface Props {
  message: Message;
  group: Group;
  onReply: (message: Message) => void;
}

export function MessageMenu({ message, group, onReply }: Props) {
  const { text, omitted, isOwn, sender, createdAt, number, selfDestructSeconds } = message;
  const name = isOwn ? "you" : sender ? displayName(sender) : "a former member";
  const here = useView().conversation?.messages.find((each) => each.number === number);
  const second = useNextExpiry([here?.goneAt ?? null]);
  if (!here || (here.goneAt !== null && here.goneAt <= second))
    return <Dialog title={`Message from ${name}`}>This message is gone.</Dialog>;
  const reply = () => {
    closeDialog();
    setTimeout(() => onReply(message)); // after the browser has restored the focus
  };
  const copy = async () => {
    await navigator.clipboard.writeText((omitted > 0 ? await engine.fullText(number) : text) ?? "");
    closeDialog();
    showToast("Copied. The clipboard is not cleared when the message expires.");
  };
  const takeBack = () => {
    closeDialog();
    confirmAction({
      title: "Take back this message?",
      text: `The message from ${name}, sent ${dateAndTime(createdAt)}, is deleted for everyone, on the server and on all devices. Copies stay.`,
      action: "Take back",
      isDanger: true,
      act: () => engine.takeBack(group.groupId, number),
    });
  };
  return (
    <Dialog title={`Message from ${name}`}>
      <p class="muted">
        {dateAndTime(createdAt)}, message {number}
      </p>
      <ul class="menu">
        {text !== null && (
          <li>
            <button type="button" onClick={reply}>
              <Icon name="reply" /> Reply
            </button>
          </li>
        )}
        {text !== null && !selfDestructSeconds && (
          <li>
            <button type="button" onClick={copy}>
              <Icon name="copy" /> Copy text
            </button>
          </li>
        )}
        {(isOwn || group.role === "admin") && (
          <li>
            <button type="button" class="danger-text" onClick={takeBack}>
              <Icon name="close" /> Take back for everyone
            </button>
          </li>
        )}
      </ul>
    </Dialog>
  );
}
