// A fake engine without a server: it shows the view of a test, and logs the commands of the page. The test controls it
// over a channel: {view} pushes a view, {alert} requests a notification, {log} returns the commands so far.

const { messages, answers } = SCENARIO;
let view = SCENARIO.view;
const log = [];
const channel = new BroadcastChannel("fake");

const WINDOW = 600;
const STEP = 100;

function push(change) {
  view = { ...view, ...change };
  postMessage({ type: "view", view });
}

/** Shows the messages of a group between two indexes. */
function show(groupId, from, to, more = {}) {
  const all = messages[groupId] ?? [];
  from = Math.max(0, from);
  to = Math.min(all.length, to);
  const shown = view.conversation?.groupId === groupId ? view.conversation : SCENARIO.conversations[groupId];
  push({
    conversation: {
      ...shown,
      ...more,
      groupId,
      messages: all.slice(from, to),
      hasEarlier: from > 0,
      hasLater: to < all.length,
    },
  });
}

function bounds() {
  const { groupId, messages: shown } = view.conversation;
  const from = messages[groupId].findIndex((each) => each.number === shown[0].number);
  return [groupId, from, from + shown.length];
}

function change(groupId, how) {
  push({ groups: view.groups.map((each) => (each.groupId === groupId ? { ...each, ...how(each) } : each)) });
}

const commands = {
  open(groupId, around) {
    if (groupId === null) return push({ conversation: null });
    const length = (messages[groupId] ?? []).length;
    const at = around ? messages[groupId].findIndex((each) => each.number === around) : -1;
    if (at >= 0) show(groupId, at - STEP, at + STEP, { around });
    else show(groupId, length - 2 * STEP, length, { around: null });
  },
  loadMore(towards) {
    const [groupId, from, to] = bounds();
    if (towards === "earlier") show(groupId, from - STEP, Math.min(to, from - STEP + WINDOW));
    else show(groupId, Math.max(from, to + STEP - WINDOW), to + STEP);
  },
  showNewest() {
    const [groupId] = bounds();
    show(groupId, messages[groupId].length - 2 * STEP, messages[groupId].length);
  },
  markSeen(groupId, numbers) {
    for (const each of messages[groupId])
      if (numbers.includes(each.number) && each.isUnread) {
        each.isUnread = false;
        if (each.selfDestructSeconds) each.goneAt = Math.floor(Date.now() / 1000) + each.selfDestructSeconds;
      }
    change(groupId, (group) => ({ unread: Math.max(0, group.unread - numbers.length) }));
    const [, from, to] = bounds();
    show(groupId, from, to);
  },
  send(groupId, text, options = {}) {
    const all = (messages[groupId] ??= []);
    const number = (all.at(-1)?.number ?? 0) + 1;
    const quoted = all.find((each) => each.number === options.replyTo);
    all.push({
      ...SCENARIO.message,
      number,
      senderId: view.account.userId,
      sender: view.account.username,
      isOwn: true,
      isUnread: false,
      text: quoted ? `> ${quoted.sender}: ${quoted.text}\n${text}` : text,
      selfDestructSeconds: options.selfDestructSeconds ?? 0,
      createdAt: Math.floor(Date.now() / 1000),
    });
    show(groupId, all.length - 2 * STEP, all.length);
  },
  takeBack(groupId, number) {
    messages[groupId] = messages[groupId].filter((each) => each.number !== number);
    show(groupId, messages[groupId].length - 2 * STEP, messages[groupId].length);
  },
  search(text, groupId) {
    return Object.entries(messages)
      .filter(([each]) => !groupId || each === groupId)
      .flatMap(([each, all]) => all.filter((one) => one.text?.includes(text)).map((one) => ({ ...one, groupId: each })))
      .slice(0, 100);
  },
  register: () => push({ phase: "in" }),
  login: () => (push({ phase: "in" }), "in"),
  logout: () => push({ phase: "out", account: null, groups: [], conversation: null }),
  accept: (inviteId) => push({ invites: view.invites.filter((each) => each.inviteId !== inviteId) }),
  decline: (inviteId) => push({ invites: view.invites.filter((each) => each.inviteId !== inviteId) }),
};

onmessage = ({ data: { id, command, args } }) => {
  log.push([command, args]);
  const answer = answers[command];
  if (answer?.fault) return postMessage({ type: "fault", id, fault: answer.fault });
  const value = commands[command]?.(...args);
  postMessage({ type: "result", id, value: command in answers ? answer : value });
};

channel.onmessage = ({ data }) => {
  if (data.log) channel.postMessage({ asked: log });
  if (data.view) push(data.view);
  if (data.alert) postMessage({ type: "alert", alert: data.alert });
  if (data.add) {
    messages[data.add.groupId].push(data.add.message);
    const [groupId, from] = bounds();
    show(groupId, from, messages[groupId].length);
  }
};

postMessage({ type: "view", view });
