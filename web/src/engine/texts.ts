/** Replies and mentions in texts. Pure functions. */

/** Characters of a message that a reply quotes. */
const MAX_QUOTED = 160;
const QUOTE = /^> .*$/gm;
const QUOTED_NAME = /^> ([a-zA-Z0-9_]{1,64}): /;
const MENTION = /(?<![\p{L}\p{N}_@.])@([a-zA-Z0-9][a-zA-Z0-9_]{0,63})(?![a-zA-Z0-9_])/gu;

/** Returns a reply: a line with the beginning of the quoted message, then the text. */
export function withReplyTo(username: string, quoted: string, text: string): string {
  const characters = Array.from(quoted).slice(0, 2 * MAX_QUOTED).join("").split(/\s+/).filter(Boolean).join(" ");
  const beginning = Array.from(characters);
  const shortened =
    beginning.length <= MAX_QUOTED ? characters : `${beginning.slice(0, MAX_QUOTED - 1).join("").trimEnd()}…`;
  return `> ${username}: ${shortened}\n${text}`;
}

/** Returns the name of the user to whom a text replies; null if it is not a reply. */
export const repliesTo = (text: string): string | null => QUOTED_NAME.exec(text)?.[1] ?? null;

/** Returns the names after an @, outside quotes. */
const mentionedNames = (text: string): string[] =>
  [...text.replace(QUOTE, "").matchAll(MENTION)].map((each) => each[1]!);

/**
 * Whether a text mentions a user by @name, or replies to the user. Case is ignored, unless it is exactly the name of
 * another member. `others`: the names of the other members of the group.
 */
export function mentions(text: string, username: string, others: Iterable<string>): boolean {
  const otherNames = new Set(others);
  otherNames.delete(username);
  const named = [repliesTo(text) ?? "", ...mentionedNames(text)];
  return named.some((each) => !otherNames.has(each) && each.toLowerCase() === username.toLowerCase());
}
