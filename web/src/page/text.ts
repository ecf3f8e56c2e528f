/** Sanitizes texts and names of other users, and splits texts into links, quotes and mentions. Pure functions. */

/** Characters and lines of a message that are shown at first. */
const MAX_SHOWN_CHARACTERS = 8_000;
const MAX_SHOWN_LINES = 100;

/** Characters of a name or another one-line text that are shown. */
const MAX_LINE_CHARACTERS = 1_000;

/** Combining marks of one character: thousands of them would cover the lines above it. */
const MAX_MARKS = 8;

/** Characters of a message that a reply quotes. */
const MAX_QUOTED = 160;

const MAX_LINK = 2_000;

const JOINERS = "\u200c\u200d";
const INVISIBLE = /[\u00ad\u200b\u200e\u200f\u2060\u061c\ufeff]/gu;
const DANGEROUS = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;
const MARK = /\p{Mn}|\p{Me}/u;
const FLAG = /\u{1f3f4}[\u{e0030}-\u{e0039}\u{e0061}-\u{e007a}]{1,6}\u{e007f}/gu;

/**
 * Replaces control characters and those that change the writing direction by �, and removes invisible characters.
 * Line breaks stay.
 */
export function sanitize(text: string): string {
  const flags: string[] = [];
  const bare = text
    .replace(/\r\n?/g, "\n")
    .replace(INVISIBLE, "")
    .replace(FLAG, (flag) => {
      flags.push(flag);
      return "\ufff9"; // a placeholder, unless the text itself has this character
    });
  let marks = 0;
  let found = 0;
  const seen = text.includes("\ufff9");
  let kept = "";
  for (const each of bare) {
    if (each === "\ufff9" && !seen) kept += flags[found++] ?? "";
    else if (each === "\n" || each === "\t") kept += each;
    else if (MARK.test(each) || JOINERS.includes(each)) kept += ++marks > MAX_MARKS ? "" : each;
    else {
      marks = 0;
      kept += DANGEROUS.test(each) ? "\ufffd" : each;
    }
  }
  return kept;
}

/** Sanitizes a text, and puts it on one line. */
export function singleLine(text: string): string {
  return sanitize(text.slice(0, MAX_LINE_CHARACTERS)).replace(/[\n\t]/g, " ");
}

/** Words by which the page names itself, the reader, and people with rights. */
const RESERVED_NAMES = new Set(
  "you me system server conclave admin administrator operator moderator root somebody nobody everybody all".split(" "),
);

/** Returns the name of a user or a group for a sentence: in quotes if it is one of RESERVED_NAMES. */
export function displayName(name: string): string {
  const plain = name
    .toLowerCase()
    .replace(/_/g, "")
    .replace(/[0135]/g, (digit) => ({ 0: "o", 1: "l", 3: "e", 5: "s" })[digit] ?? digit);
  return RESERVED_NAMES.has(plain) ? `"${singleLine(name)}"` : singleLine(name);
}

export interface Part {
  kind: "text" | "quote" | "link" | "mention" | "self";
  text: string;
  /** For links. */
  href?: string;
}

const HOST = String.raw`(?:[a-zA-Z0-9_-]+(?:\.[a-zA-Z0-9_-]+)*|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?`;
const LINK = String.raw`(?<![a-zA-Z0-9])https?:\/\/${HOST}(?![.:]?[\w@%-])(?:[/?#][^\s"<>\\^\x60{|}]*)?`;
const MENTION = String.raw`(?<![\w@.])@[a-zA-Z0-9][a-zA-Z0-9_]{0,63}(?![a-zA-Z0-9_])`;
const PATTERN = new RegExp(`(^> .*(?:\\n|$))|(${LINK})|(${MENTION})`, "gimu");

/**
 * Splits a sanitized text: quotes (whole lines with their line breaks), links whose text is their target, and names of
 * members (`names`, in lower case) after an @.
 */
export function parseText(text: string, self: string, names: ReadonlySet<string>): Part[] {
  const out: Part[] = [];
  let at = 0;
  const add = (part: Part, start: number) => {
    if (start > at) out.push({ kind: "text", text: text.slice(at, start) });
    out.push(part);
    at = start + part.text.length;
  };
  for (const each of text.matchAll(PATTERN)) {
    const [, quote, link, mention] = each;
    if (quote) add({ kind: "quote", text: quote }, each.index);
    else if (link) {
      const shown = trimLink(/^[\p{L}\p{N}\x00-\x7f]*/u.exec(link)![0]);
      const href = safeHref(shown);
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

/** Removes trailing punctuation, and a closing bracket that is not opened within the link. */
function trimLink(link: string): string {
  const opened: Record<string, string> = { ")": "(", "]": "[" };
  const count = (sign: string) => link.split(sign).length;
  for (;;) {
    const last = link.slice(-1);
    const open = opened[last];
    if (!".,;:!?'*_~".includes(last) && !(open && count(last) > count(open))) return link;
    link = link.slice(0, -1);
  }
}

function safeHref(link: string): string | null {
  try {
    const { href, protocol } = new URL(link);
    return /^https?:$/.test(protocol) && href.length <= MAX_LINK ? href : null;
  } catch {
    return null;
  }
}

/** Returns the quotePreview of a message, as a reply quotes it. */
export function quotePreview(text: string): string {
  const said = text.replace(/^> .*$/gm, "").trim();
  const short = [...said.slice(0, 2 * MAX_QUOTED)].join("").split(/\s+/).join(" ");
  return short.length <= MAX_QUOTED ? short : `${short.slice(0, MAX_QUOTED - 1).trimEnd()}…`;
}

/** Cuts a text to the characters and lines that are shown at first; `omitted` counts the other characters. */
export function truncate(text: string): { shown: string; omitted: number } {
  // Without a regular expression: one for the end would take minutes for 700,000 empty lines.
  const isBreak = (at: number) => text[at] === "\n" || text[at] === "\r";
  let begin = 0;
  let end = text.length;
  while (begin < end && isBreak(begin)) begin += 1;
  while (end > begin && isBreak(end - 1)) end -= 1;
  const bare = text.slice(begin, end);
  const shown = bare.slice(0, MAX_SHOWN_CHARACTERS).split("\n").slice(0, MAX_SHOWN_LINES).join("\n");
  return { shown, omitted: bare.length - shown.length };
}

/** Joins names: "a, b and c". */
export function joinNames(names: readonly string[]): string {
  const shown = names.length > 4 ? [...names.slice(0, 3), `${names.length - 3} more`] : [...names];
  const last = shown.pop() ?? "";
  return shown.length ? `${shown.join(", ")} and ${last}` : last;
}

/** Returns a number with its noun: "2 messages". */
export function count(number: number, noun: string): string {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
