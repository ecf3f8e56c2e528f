/** The dialog about a member of a group. */

import { CompareDialog } from "./compare";
import { Action, Dialog, ask } from "./dialog";
import { choose } from "./place";
import { attempt, closeDialog, closeDialogs, engine, openDialog, useView } from "./store";
import { called, inPassing } from "./text";

export function MemberDialog({ groupId, userId }: { groupId: string; userId: string }) {
  const group = useView().groups.find((each) => each.groupId === groupId);
  const member = group?.members.find((each) => each.userId === userId);
  if (!group || !member) return <Dialog title="Member">This person is no member any more.</Dialog>;
  const { username, alias, isSelf, role, key } = member;
  const name = called(username);
  const isAdmin = group.role === "admin";
  return (
    <Dialog title={name}>
      <p>
        {alias && <bdi>{inPassing(alias)}, </bdi>}
        {role === "admin" ? "an admin of this group" : "a member of this group"}
      </p>
      {key ? (
        <section>
          <h3>Key</h3>
          <p class="fingerprint">{key.fingerprint.replace(/(.{8})/g, "$1 ")}</p>
          {!isSelf && (
            <>
              <p class={key.trust === "changed" ? "danger-text" : "hint"}>
                {
                  {
                    unknown: "You have not compared it.",
                    verified: "You have compared it: it is verified.",
                    changed: "It is another one than the one you knew.",
                  }[key.trust]
                }
              </p>
              <button
                type="button"
                onClick={() => openDialog(() => <CompareDialog groupId={groupId} userId={userId} />)}
              >
                Compare keys
              </button>
            </>
          )}
        </section>
      ) : (
        <p class="hint">{isSelf ? "You have" : `${name} has`} no keys in this group yet.</p>
      )}
      {!isSelf && (
        <div class="actions start">
          {group.direct === null && (
            <Action
              act={async () => {
                const direct = await engine.direct(username);
                closeDialogs();
                choose(direct);
              }}
            >
              Write to {name}
            </Action>
          )}
          {isAdmin && (
            <>
              <Action act={() => engine.setRole(groupId, userId, role === "admin" ? "member" : "admin")}>
                {role === "admin" ? "Make a plain member" : "Make an admin"}
              </Action>
              <button type="button" class="danger" onClick={() => remove(groupId, userId, name, false)}>
                Remove
              </button>
              <button type="button" class="danger" onClick={() => remove(groupId, userId, name, true)}>
                Ban
              </button>
            </>
          )}
        </div>
      )}
      {isSelf && isAdmin && group.members.length > 1 && (
        <Action act={() => attempt(engine.setRole(groupId, userId, "member"))}>Be a plain member</Action>
      )}
    </Dialog>
  );
}

function remove(groupId: string, userId: string, name: string, isBan: boolean): void {
  ask({
    title: isBan ? `Ban ${name}?` : `Remove ${name}?`,
    text: `${name} cannot read what is said from now on.${isBan ? " An invite or a public group does not let them in again, until an admin unbans them." : ""}`,
    action: isBan ? "Ban" : "Remove",
    isDanger: true,
    act: () => (isBan ? engine.ban(groupId, userId) : engine.removeMember(groupId, userId)),
    done: closeDialog,
  });
}
