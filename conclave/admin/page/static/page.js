// Renews what the page shows, every 10 seconds while somebody looks at it. Forms and what is unfolded stay as they are.
"use strict";
const EVERY_MS = 10000;
async function renew() {
  if (document.hidden) return;
  try {
    const answer = await fetch("/", { cache: "no-store", credentials: "same-origin" });
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const choose of ["#live", "header"]) {
      const fresh = page.querySelector(choose), shown = document.querySelector(choose);
      const open = [...shown.querySelectorAll("details[open]")].map((each) => each.id);
      shown.replaceWith(fresh);
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    }
    document.title = page.title;
  } catch (error) {
    document.title = "(no answer) Conclave: operations";
  }
}
setInterval(renew, EVERY_MS);
