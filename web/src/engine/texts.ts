/** What a text says beside its words: whom it quotes, whom it means. Pure, for the page too. */

/** Of a message up to 160 characters are quoted. */
const MOST_QUOTED = 160;
const QUOTED = /^> .*$/gm;
const WHOM = /^> ([a-zA-Z0-9_]{1,64}): /;
const MENTION = /(?<![\p{L}\p{N}_@.])@([a-zA-Z0-9][a-zA-Z0-9_]{0,63})(?![a-zA-Z0-9_])/gu;

/** A text that answers another one, with the beginning of that on a line before it. */
export function replyTo(username: string, quoted: string, text: string): string {
  const characters = Array.from(quoted).slice(0, 2 * MOST_QUOTED).join("").split(/\s+/).filter(Boolean).join(" ");
  const beginning = Array.from(characters);
  const shortened =
    beginning.length <= MOST_QUOTED ? characters : `${beginning.slice(0, MOST_QUOTED - 1).join("").trimEnd()}…`;
  return `> ${username}: ${shortened}\n${text}`;
}

/** What is said in a text beside its quotes. */
const withoutQuotes = (text: string): string => text.replace(QUOTED, "");

/** The name of the one whom a text answers; null: nobody. */
export const answers = (text: string): string | null => WHOM.exec(text)?.[1] ?? null;

/** The places of quotes in a text: from where, and to where. */
export const quotesIn = (text: string): [number, number][] =>
  [...text.matchAll(QUOTED)].map((each) => [each.index, each.index + each[0].length]);

/** The places of @names in a text: from where, to where, and the name. */
export const mentionsIn = (text: string): [number, number, string][] =>
  [...text.matchAll(MENTION)].map((each) => [each.index, each.index + each[0].length, each[1]!]);

/**
 * Tells whether a text means a user: by @name, or by an answer. Capitals do not matter, unless what is written is the name
 * of another one. `others`: the names of the other members of the group.
 */
export function means(text: string, username: string, others: Iterable<string>): boolean {
  const taken = new Set(others);
  taken.delete(username);
  const named = [answers(text) ?? "", ...mentionsIn(withoutQuotes(text)).map(([, , name]) => name)];
  return named.some((each) => !taken.has(each) && each.toLowerCase() === username.toLowerCase());
}
