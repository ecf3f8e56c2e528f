/** Checks who has sent a message, and whether the sender may change the members of the group. */

import type { Id } from "../api";
import { idOf } from "../bytes";
import { identityOf } from "../mls/checks";
import { invalid, MlsError } from "../mls/errors";
import type { Member, MlsGroup } from "../mls/group";
import type { Received } from "../mls/receiving";
import type { GroupAgenda } from "./agenda";

export class UnauthorizedChangeError extends MlsError {
  constructor(text: string) {
    super("invalid", text);
  }
}

/** Checks that a message is from the user that the server names (RFC 9420, 5.3.1). */
export function checkSender(received: Received, senderId: Id): void {
  const sender = received.kind === "commit" ? received.effect.committer : received.sender;
  if (sender && sender.userId !== senderId) throw invalid("the server named another sender");
}

/**
 * Checks the right to change members, by the server's list. Admins may make any change. Other members may remove users
 * who are not listed and their own leaf, and add listed users. Proposals are checked when they are received.
 */
export function checkRights(agenda: GroupAgenda, before: MlsGroup, received: Received): void {
  const { added, removed, by } = membershipChanges(before, received);
  const { listed, admins } = agenda;
  if (by === null || listed === null || admins.has(by)) return;
  if (removed.some((each) => listed.has(each) && each !== by))
    throw new UnauthorizedChangeError("only an admin may remove a member");
  if (added.some((each) => !listed.has(each)))
    throw new UnauthorizedChangeError("only an admin may add a user who is not a member");
}

/** Returns the users that a message adds and removes, and who needs the right to it; null: it changes no members. */
function membershipChanges(before: MlsGroup, received: Received): { added: Id[]; removed: Id[]; by: Id | null } {
  if (received.kind === "commit" && !received.isOwn) {
    const { effect } = received; // without proposals of others, which were checked when they were received
    const ids = (members: readonly Member[]): Id[] =>
      members.filter((each) => !effect.proposed.includes(each)).map((each) => each.userId);
    return { added: ids(effect.added), removed: ids(effect.removed), by: effect.committer.userId };
  }
  if (received.kind === "proposal" && received.sender) {
    const { proposal } = received;
    const added = "add" in proposal ? [idOf(identityOf(proposal.add.keyPackage.leafNode))] : [];
    const gone = "remove" in proposal ? before.members().find((each) => each.index === proposal.remove.removed) : undefined;
    return { added, removed: gone ? [gone.userId] : [], by: received.sender.userId };
  }
  return { added: [], removed: [], by: null };
}
