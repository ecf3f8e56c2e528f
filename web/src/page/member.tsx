/** The dialog for a member of a group. */

import { CompareDialog } from "./compare";
import { Action, Dialog, confirmAction } from "./dialog";
import { navigateTo } from "./place";
import { closeDialog, closeAllDialogs, engine, openDialog, useView } from "./store";
import { displayName, singleLine } from "./text";

export function MemberDialog({ groupId, userId }: { groupId: string; userId: string }) {
  const group = useView().groups.find((each) => each.groupId === groupId);
  const member = group?.members.find((each) => each.userId === userId);
  if (!group || !member) return <Dialog title="Member">This person is no longer a member.</Dialog>;
  const { username, alias, isSelf, role, key } = member;
  const name = displayName(username);
  const isAdmin = group.role === "admin";
  return (
    <Dialog title={name}>
      <p>
        {alias && <bdi>{singleLine(alias)}, </bdi>}
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
                    unknown: "You have not verified this key.",
                    verified: "You have verified this key.",
                    changed: "This key has changed. Compare keys to verify it.",
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
                const direct = await engine.openDirect(username);
                closeAllDialogs();
                navigateTo(direct);
              }}
            >
              Message {name}
            </Action>
          )}
          {isAdmin && (
            <>
              <Action act={() => engine.setRole(groupId, userId, role === "admin" ? "member" : "admin")}>
                {role === "admin" ? "Dismiss as admin" : "Make admin"}
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
        <Action act={() => engine.setRole(groupId, userId, "member")}>Step down as admin</Action>
      )}
    </Dialog>
  );
}

function remove(groupId: string, userId: string, name: string, isBan: boolean): void {
  confirmAction({
    title: isBan ? `Ban ${name}?` : `Remove ${name}?`,
    text: `${name} cannot read new messages.${isBan ? " They cannot rejoin until an admin unbans them." : ""}`,
    action: isBan ? "Ban" : "Remove",
    isDanger: true,
    act: () => (isBan ? engine.ban(groupId, userId) : engine.removeMember(groupId, userId)),
    done: closeDialog,
  });
}
