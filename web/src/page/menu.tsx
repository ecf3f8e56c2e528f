/** What can be done with a message. */

import type { Group, Message } from "../engine/api";
import { Dialog, ask } from "./dialog";
import { Icon } from "./icons";
import { closeDialog, engine, say, useView } from "./store";
import { called } from "./text";
import { dateAndTime, useMoment } from "./time";

interface Props {
  message: Message;
  group: Group;
  onReply: (message: Message) => void;
}

export function MessageMenu({ message, group, onReply }: Props) {
  const { text, left, isOwn, sender, createdAt, number, selfDestructSeconds } = message;
  const name = isOwn ? "you" : sender ? called(sender) : "somebody who has left";
  const here = useView().conversation?.messages.find((each) => each.number === number);
  const moment = useMoment([here?.goneAt ?? null]);
  if (!here || (here.goneAt !== null && here.goneAt <= moment))
    return <Dialog title={`Message of ${name}`}>It is gone.</Dialog>;
  const reply = () => {
    closeDialog();
    setTimeout(() => onReply(message)); // the browser first puts the focus back
  };
  const copy = async () => {
    await navigator.clipboard.writeText((left > 0 ? await engine.whole(number) : text) ?? "");
    closeDialog();
    say("Copied. What is in the clipboard does not go by itself.");
  };
  const takeBack = () => {
    closeDialog();
    ask({
      title: "Take the message back?",
      text: `It goes for everybody, from the server and from each device, but for who has copied it. It is of ${name}, from ${dateAndTime(createdAt)}.`,
      action: "Take back",
      isDanger: true,
      act: () => engine.takeBack(group.groupId, number),
    });
  };
  return (
    <Dialog title={`Message of ${name}`}>
      <p class="muted">
        {dateAndTime(createdAt)}, number {number}
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
              <Icon name="copy" /> Copy the text
            </button>
          </li>
        )}
        {(isOwn || group.role === "admin") && (
          <li>
            <button type="button" class="danger-text" onClick={takeBack}>
              <Icon name="close" /> Take back for everybody
            </button>
          </li>
        )}
      </ul>
    </Dialog>
  );
}
