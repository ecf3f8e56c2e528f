/** Derives the names of groups: from a title, or from two users. The same as in the terminal chat. */

const MAX_LENGTH = 64;
/** Letters that Unicode does not decompose. */
const TRANSLITERATED: Record<string, string> = { ß: "ss", ø: "o", Ø: "O", æ: "ae", Æ: "Ae", œ: "oe", ł: "l", Ł: "L", đ: "d" };

/** Returns the name for a title, Smith_v_Jones_2026 for "Smith v. Jones, 2026"; "" if no character can be used. */
export function nameFor(title: string): string {
  const letters = title
    .replace(/[ßøØæÆœłŁđ]/g, (each) => TRANSLITERATED[each]!)
    .normalize("NFKD")
    .replace(/\p{M}/gu, "");
  return letters
    .replace(/[^a-zA-Z0-9]+/g, "_")
    .replace(/^_+|_+$/g, "")
    .slice(0, MAX_LENGTH)
    .replace(/_+$/, "");
}

/** Returns the names to try for a title, in this order. */
export const namesFor = (title: string): string[] => numbered(nameFor(title) || `group_${crypto.randomUUID().slice(0, 8)}`);

/** Returns the names to try for the group for direct messages of two users, in this order. */
export const directNames = (one: string, other: string): string[] => numbered(`${one}_and_${other}`.slice(0, MAX_LENGTH));

/** Returns a name, and the ones to use if it is taken. */
const numbered = (name: string): string[] => [name, ...[2, 3, 4, 5, 6, 7, 8, 9].map((each) => `${name.slice(0, MAX_LENGTH - 2)}_${each}`)];
