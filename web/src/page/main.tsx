/** The page: shows the view of the engine. */

import { render } from "preact";
import { connect } from "../engine/client";
import "./style.css";

declare const WORKER_URL: string;

connect(
  WORKER_URL,
  (view) => render(<p>{view.connection.state}</p>, document.body),
  () => {},
);
