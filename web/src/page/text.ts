/** Texts and names of others, so that they do no harm where they are shown, and their parts. Pure. */

/** A message is shown up to so many characters and lines at first. */
export const LONGEST = 8_000;
export const MOST_LINES = 100;

/** A name, or anything else that is no message, is shown up to 1,000 characters. */
const MOST_IN_PASSING = 1_000;

/** A letter has up to 8 accents: thousands of them would reach into the lines above it. */
const MOST_MARKS = 8;

/** Of a message up to 160 characters are quoted. */
export const MOST_QUOTED = 160;

/** An address has up to 2,000 characters. */
const MOST_OF_LINK = 2_000;

const JOINERS = "\u200c\u200d";
const UNSEEN = /[\u00ad\u200b\u200e\u200f\u2060\u061c\ufeff]/gu;
const DANGEROUS = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;
const MARK = /\p{Mn}|\p{Me}/u;
const FLAG = /\u{1f3f4}[\u{e0030}-\u{e0039}\u{e0061}-\u{e007a}]{1,6}\u{e007f}/gu;

/**
 * A text in which control characters, and those that turn the direction of writing, became visible as �. Marks where a
 * word may be broken are left out. Ends of lines stay.
 */
export function harmless(text: string): string {
  const flags: string[] = [];
  const bare = text
    .replace(/\r\n?/g, "\n")
    .replace(UNSEEN, "")
    .replace(FLAG, (flag) => {
      flags.push(flag);
      return "\ufff9"; // a format character of its own: any in the text itself is replaced first
    });
  let marks = 0;
  let found = 0;
  const seen = text.includes("\ufff9");
  let kept = "";
  for (const each of bare) {
    if (each === "\ufff9" && !seen) kept += flags[found++] ?? "";
    else if (each === "\n" || each === "\t") kept += each;
    else if (MARK.test(each) || JOINERS.includes(each)) kept += ++marks > MOST_MARKS ? "" : each;
    else {
      marks = 0;
      kept += DANGEROUS.test(each) ? "\ufffd" : each;
    }
  }
  return kept;
}

/** A name or a word in passing: harmless, in one line. */
export function inPassing(text: string): string {
  return harmless(text.slice(0, MOST_IN_PASSING)).replace(/[\n\t]/g, " ");
}

/** What the page calls itself, the reader, and whoever decides. */
const OWN_WORDS = new Set(
  "you me system server conclave admin administrator operator moderator root somebody nobody everybody all".split(" "),
);

/** The name of a user or a group among the page's own words: in quotes if it is one of them. */
export function called(name: string): string {
  const plain = name
    .toLowerCase()
    .replace(/_/g, "")
    .replace(/[0135]/g, (digit) => ({ 0: "o", 1: "l", 3: "e", 5: "s" })[digit] ?? digit);
  return OWN_WORDS.has(plain) ? `"${inPassing(name)}"` : inPassing(name);
}

export interface Part {
  kind: "text" | "quote" | "link" | "mention" | "self";
  text: string;
  /** Of a link. */
  href?: string;
}

const HOST = String.raw`(?:[a-zA-Z0-9_-]+(?:\.[a-zA-Z0-9_-]+)*|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?`;
const LINK = String.raw`(?<![a-zA-Z0-9])https?:\/\/${HOST}(?![.:]?[\w@%-])(?:[/?#][^\s"<>\\^\x60{|}]*)?`;
const MENTION = String.raw`(?<![\w@.])@[a-zA-Z0-9][a-zA-Z0-9_]{0,63}(?![a-zA-Z0-9_])`;
const FOUND = new RegExp(`(^> .*(?:\\n|$))|(${LINK})|(${MENTION})`, "gimu");

/**
 * The parts of a harmless text: quotes (whole lines with their ends), links that lead where their text says, and names of members
 * (`names`, in lower case) after an @.
 */
export function parts(text: string, self: string, names: ReadonlySet<string>): Part[] {
  const out: Part[] = [];
  let at = 0;
  const add = (part: Part, start: number) => {
    if (start > at) out.push({ kind: "text", text: text.slice(at, start) });
    out.push(part);
    at = start + part.text.length;
  };
  for (const each of text.matchAll(FOUND)) {
    const [, quote, link, mention] = each;
    if (quote) add({ kind: "quote", text: quote }, each.index);
    else if (link) {
      const shown = withoutEnd(/^[\p{L}\p{N}\x00-\x7f]*/u.exec(link)![0]);
      const href = encoded(shown);
      if (href) add({ kind: "link", text: shown, href }, each.index);
    } else if (mention) {
      const name = mention.slice(1).toLowerCase();
      const isSelf = name === self.toLowerCase();
      if (isSelf || names.has(name)) add({ kind: isSelf ? "self" : "mention", text: mention }, each.index);
    }
  }
  if (at < text.length) out.push({ kind: "text", text: text.slice(at) });
  return out;
}

/** Leaves out what belongs to the sentence: its end, and a bracket that was not opened within. */
function withoutEnd(link: string): string {
  const opened: Record<string, string> = { ")": "(", "]": "[" };
  const count = (sign: string) => link.split(sign).length;
  for (;;) {
    const last = link.slice(-1);
    const open = opened[last];
    if (!".,;:!?'*_~".includes(last) && !(open && count(last) > count(open))) return link;
    link = link.slice(0, -1);
  }
}

function encoded(link: string): string | null {
  try {
    const { href, protocol } = new URL(link);
    return /^https?:$/.test(protocol) && href.length <= MOST_OF_LINK ? href : null;
  } catch {
    return null;
  }
}

/** The beginning of a message, as it is quoted. */
export function beginning(text: string): string {
  const said = text.replace(/^> .*$/gm, "").trim();
  const short = [...said.slice(0, 2 * MOST_QUOTED)].join("").split(/\s+/).join(" ");
  return short.length <= MOST_QUOTED ? short : `${short.slice(0, MOST_QUOTED - 1).trimEnd()}…`;
}

/** A text cut to LONGEST characters and MOST_LINES lines, and how many characters are left out. */
export function cut(text: string): { shown: string; left: number } {
  // No expression for the end: a text of 700,000 empty lines would take it minutes.
  const isBreak = (at: number) => text[at] === "\n" || text[at] === "\r";
  let begin = 0;
  let end = text.length;
  while (begin < end && isBreak(begin)) begin += 1;
  while (end > begin && isBreak(end - 1)) end -= 1;
  const bare = text.slice(begin, end);
  const shown = bare.slice(0, LONGEST).split("\n").slice(0, MOST_LINES).join("\n");
  return { shown, left: bare.length - shown.length };
}

/** Names: a, b and c. */
export function listed(names: readonly string[]): string {
  const shown = names.length > 4 ? [...names.slice(0, 3), `${names.length - 3} more`] : [...names];
  const last = shown.pop() ?? "";
  return shown.length ? `${shown.join(", ")} and ${last}` : last;
}

export function count(number: number, thing: string): string {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}
