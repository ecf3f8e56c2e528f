/** Line icons of 24 x 24, hidden from screen readers: the buttons that they are on have labels. */

const PATHS = {
  back: "M15 5l-7 7 7 7",
  close: "M6 6l12 12M18 6L6 18",
  clock: "M12 7v5l3 2M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  flame:
    "M12 3c1 4 6 5.5 6 11a6 6 0 0 1-12 0c0-2.5 1.5-4 2.5-5.5C9.5 10 10.5 10 11 11c1-2.5.5-5 1-8z",
  lock: "M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 7 0v3",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  people:
    "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM2.5 20c0-4 3-6 6.5-6s6.5 2 6.5 6M16 4.5a3.5 3.5 0 0 1 0 6M18 14.5c2.2.8 3.5 2.7 3.5 5.5",
  plus: "M12 5v14M5 12h14",
  reply: "M9 7l-5 5 5 5M4 12h9c4 0 7 2 7 6",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.5 15.5L20 20",
  send: "M4 12l16-8-6 16-3-7z",
  down: "M6 9l6 6 6-6",
  user: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 21c0-4.5 3.5-7 8-7s8 2.5 8 7",
  warning: "M12 4l9 16H3zM12 10v4M12 17.010V17",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class={`icon-${name}`} viewBox="0 0 24 24" width="24" height="24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
