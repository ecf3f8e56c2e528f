/** How long messages live: what a group's setting comes to, and how it is told. */

import type { Retention } from "./server/wire";

const KEEP = -1;
const AFTER_FETCH = 0;

type Limit = { max_lifetime?: number };

/**
 * The effective expiry that `expiry` would have as a group's own setting. `server`: its message_retention. `policies` and
 * `limits`: what the operator has set, in milliseconds; the rule is that of docs/retention.md, "The effective policy".
 */
export function effective(groupId: string, expiry: number, server: number, configured: { policies: unknown; limits: unknown }): number {
  const policies = configured.policies as Record<string, Limit>;
  const limit = (configured.limits as { max_lifetime?: { min?: number; max?: number } }).max_lifetime ?? {};
  const own = policies[groupId];
  if (own) return secondsOf(own);
  if (expiry === KEEP) return secondsOf(policies["*"] ?? {});
  if (server === AFTER_FETCH || expiry === AFTER_FETCH) return AFTER_FETCH;
  let within = Math.max(expiry, Math.floor((limit.min ?? 0) / 1000));
  if (limit.max !== undefined) within = Math.min(within, Math.floor(limit.max / 1000));
  return server === KEEP ? within : Math.min(within, server);
}

const secondsOf = (policy: Limit): number =>
  policy.max_lifetime === undefined ? KEEP : Math.floor(policy.max_lifetime / 1000);

/** Says that messages live for another time, and who has decided it. `admin`: who has set what the group has, with the verb. */
export function told(former: Retention | undefined, now: Retention, admin: string): string {
  const isOwn = !former || now.group_expiry_seconds !== former.group_expiry_seconds;
  return `messages are ${lifetime(now.effective_expiry_seconds)} from now on: ${isOwn ? admin : "the operator has"} set that`;
}

const UNITS: [number, string][] = [
  [86_400, "day"],
  [3_600, "hour"],
  [60, "minute"],
  [1, "second"],
];

/** A lifetime in words. */
export function lifetime(seconds: number): string {
  if (seconds === KEEP) return "kept";
  if (seconds === AFTER_FETCH) return "deleted from the server once all have fetched them";
  const [size, unit] = UNITS.find(([each]) => seconds % each === 0)!;
  const count = seconds / size;
  return `gone after ${count} ${unit}${count === 1 ? "" : "s"}`;
}
