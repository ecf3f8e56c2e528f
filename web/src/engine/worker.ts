/** The Worker: takes commands of the page, and pushes views and calls to it. */

import { Failed, type Reply, type Request, type View } from "./api";

const view: View = {
  phase: "starting",
  fault: "",
  account: null,
  connection: { state: "connecting", why: "", retryAt: 0 },
  clockOffset: null,
  groups: [],
  invites: [],
  conversation: null,
};

const reply = (message: Reply) => postMessage(message);

onmessage = ({ data }: MessageEvent<Request>) => {
  const { fault } = new Failed({ kind: "unspecified", text: data.command, fields: {} });
  reply({ type: "fault", id: data.id, fault });
};

reply({ type: "view", view });
