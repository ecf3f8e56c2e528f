/** The lifetime of messages: the effective expiry, and notices about changes. */

import type { Retention } from "./server/wire";

const KEEP = -1;
const AFTER_FETCH = 0;

type Limit = { max_lifetime?: number };

/**
 * Returns what the effective expiry would be if the group's setting were `expiry`. `server`: the server's
 * message_retention. `policies` and `limits`: the operator's settings, in milliseconds. The rule is in docs/retention.md, "The effective policy".
 */
export function effectiveExpiry(groupId: string, expiry: number, server: number, configured: { policies: unknown; limits: unknown }): number {
  const policies = configured.policies as Record<string, Limit>;
  const limit = (configured.limits as { max_lifetime?: { min?: number; max?: number } }).max_lifetime ?? {};
  const own = policies[groupId];
  if (own) return secondsOf(own);
  if (expiry === KEEP) return secondsOf(policies["*"] ?? {});
  if (server === AFTER_FETCH || expiry === AFTER_FETCH) return AFTER_FETCH;
  let limited = Math.max(expiry, Math.floor((limit.min ?? 0) / 1000));
  if (limit.max !== undefined) limited = Math.min(limited, Math.floor(limit.max / 1000));
  return server === KEEP ? limited : Math.min(limited, server);
}

const secondsOf = (policy: Limit): number =>
  policy.max_lifetime === undefined ? KEEP : Math.floor(policy.max_lifetime / 1000);

/** Returns the notice about a changed lifetime. `admin`: the admin who changed the group's setting, if it has changed. */
export function policyNotice(former: Retention, now: Retention, admin: string): string {
  const isOwn = now.group_expiry_seconds !== former.group_expiry_seconds;
  const actor = isOwn ? admin : "The operator";
  return `${actor} changed the message lifetime: messages are ${lifetime(now.effective_expiry_seconds)}.`;
}

const UNITS: [number, string][] = [
  [86_400, "day"],
  [3_600, "hour"],
  [60, "minute"],
  [1, "second"],
];

/** Returns a lifetime in words. */
function lifetime(seconds: number): string {
  if (seconds === KEEP) return "kept forever";
  if (seconds === AFTER_FETCH) return "deleted from the server once all members have fetched them";
  const [size, unit] = UNITS.find(([each]) => seconds % each === 0)!;
  const count = seconds / size;
  return `deleted after ${count} ${unit}${count === 1 ? "" : "s"}`;
}
