/** Derives the name of a group from its title: Smith_v_Jones_2026 from "Smith v. Jones, 2026". */

const MAX_LENGTH = 64;
/** Letters that Unicode does not decompose. */
const TRANSLITERATED: Record<string, string> = { ß: "ss", ø: "o", Ø: "O", æ: "ae", Æ: "Ae", œ: "oe", ł: "l", Ł: "L", đ: "d" };

/** Returns the name for a title; "" if no character can be used. */
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
