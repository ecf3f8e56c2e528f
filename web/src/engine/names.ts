/** A name of a group that is made of a title, as Smith_v_Jones_2026 of Smith v. Jones, 2026. */

const LONGEST = 64;
/** Letters that are no other letter with a mark. */
const SPELLED: Record<string, string> = { ß: "ss", ø: "o", Ø: "O", æ: "ae", Æ: "Ae", œ: "oe", ł: "l", Ł: "L", đ: "d" };

/** The name for a title; "" if nothing of it can be in one. */
export function nameFor(title: string): string {
  const letters = title
    .replace(/[ßøØæÆœłŁđ]/g, (each) => SPELLED[each]!)
    .normalize("NFKD")
    .replace(/\p{M}/gu, "");
  return letters
    .replace(/[^a-zA-Z0-9]+/g, "_")
    .replace(/^_+|_+$/g, "")
    .slice(0, LONGEST)
    .replace(/_+$/, "");
}
