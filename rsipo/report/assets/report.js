"use strict";
// The page without this script shows all figures. Here: the theme, the tabs of runs, and the table of tasks.
// Every text of a run enters the page as textContent.
(() => {
  const byId = (id) => document.getElementById(id);

  /** An element with properties, classes and children; strings become text. */
  function make(tag, options = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(options)) {
      if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  // ------------------------------------------------------------------ theme

  const THEMES = ["auto", "light", "dark"];
  const stored = (() => {
    try { return localStorage.getItem("rsipo-theme"); } catch { return null; }
  })();
  function setTheme(theme) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    byId("theme").textContent = `Theme: ${theme}`;
    byId("theme").dataset.now = theme;
    try { localStorage.setItem("rsipo-theme", theme); } catch { /* a file may have no storage */ }
  }
  byId("theme").addEventListener("click", (event) => {
    setTheme(THEMES[(THEMES.indexOf(event.currentTarget.dataset.now) + 1) % THEMES.length]);
  });
  setTheme(THEMES.includes(stored) ? stored : "auto");

  // ------------------------------------------------------------------ tabs of runs

  const tabs = [...document.querySelectorAll('[role="tab"]')];
  function selectTab(chosen, focus) {
    for (const tab of tabs) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", on);
      tab.tabIndex = on ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).hidden = !on;
    }
    if (focus) chosen.focus();
  }
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => selectTab(tab));
    tab.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) selectTab(tabs[(place + move + tabs.length) % tabs.length], true);
    });
  });
  if (tabs.length) selectTab(tabs[0]);

  // ------------------------------------------------------------------ numbers

  const finite = (value) => typeof value === "number";
  const number = (value, digits = 3) => (finite(value) ? value.toFixed(digits).replace("-", "−") : "–");
  const signed = (value) => (finite(value) ? (value > 0 ? "+" : "") + number(value) : "–");
  const percent = (value) => (finite(value) ? `${Math.round(value * 100)}%` : "–");
  const side = (value, middle = 0) => (!finite(value) || Math.abs(value - middle) < 5e-4 ? "" : value > middle ? "better" : "worse");

  // ------------------------------------------------------------------ the index of tasks

  const index = JSON.parse(byId("index").textContent);
  const checks = JSON.parse(byId("checks").textContent);
  const column = index.columns;
  const total = column.step.length;
  if (!total) {
    byId("tasks").append(make("p", { className: "card note" }, "No task went through the execution check."));
    return;
  }
  // Where a task stands in the details of its run and step: the index keeps their order.
  const position = new Int32Array(total);
  for (let task = 1; task < total; task++) {
    const same = column.run[task] === column.run[task - 1] && column.step[task] === column.step[task - 1];
    position[task] = same ? position[task - 1] + 1 : 0;
  }
  const haystack = column.skill.map((skill, task) => `${column.task_id[task]}\n${skill}`.toLowerCase());

  const STATUS = { valid: "valid", invalid: "invalid", none: "no skill", mismatch: "mismatch" };
  const COLUMNS = [
    { key: "run", label: "Run", text: (task) => index.runs[column.run[task]], only: index.runs.length > 1 },
    { key: "step", label: "Step", numeric: true, text: (task) => String(column.step[task]) },
    { key: "type", label: "Type", text: (task) => index.types[column.type[task]] },
    { key: "task_id", label: "Task and skill", main: true },
    { key: "status", label: "Skill", text: (task) => STATUS[column.status[task]], mark: (task) => `tag ${column.status[task]}` },
    { key: "control_rate", label: "Control", numeric: true, text: (task) => percent(column.control_rate[task]), hint: "success of the control rollouts" },
    { key: "replay_rate", label: "Replays", numeric: true, text: (task) => percent(column.replay_rate[task]), hint: "success of the replays with the skill" },
    { key: "gain", label: "Δ", numeric: true, text: (task) => signed(column.gain[task]), mark: (task) => side(column.gain[task]), hint: "replay gain, eq. (5)" },
    { key: "shrinkage_weight", label: "w", numeric: true, text: (task) => number(column.shrinkage_weight[task], 2), hint: "shrinkage weight, eq. (7)" },
    { key: "shrunk_gain", label: "ĝ", numeric: true, text: (task) => signed(column.shrunk_gain[task]), mark: (task) => side(column.shrunk_gain[task]), hint: "shrunk gain, eq. (7)" },
    { key: "skill_reward", label: "r", numeric: true, text: (task) => signed(column.skill_reward[task]), mark: (task) => side(column.skill_reward[task]), hint: "skill reward, eq. (8)" },
    { key: "trust", label: "ω", numeric: true, text: (task) => number(column.trust[task], 2), mark: (task) => side(column.trust[task], 1), hint: "trust, eq. (11)" },
  ].filter((entry) => entry.only !== false);

  // ------------------------------------------------------------------ filter, sort, page

  const PAGE = 50;
  const state = { found: [], key: null, descending: false, page: 0 };
  const fields = Object.fromEntries(["search", "run", "type", "from", "to", "status"].map((id) => [id, byId(id)]));

  function fill(select, label, names) {
    select.append(make("option", { value: "" }, label), ...names.map((name, place) => make("option", { value: String(place) }, name)));
  }
  fill(fields.run, "all runs", index.runs);
  fill(fields.type, "all types", index.types);
  byId("run-filter").hidden = index.runs.length < 2;

  function matching() {
    const words = fields.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const from = fields.from.value === "" ? -Infinity : Number(fields.from.value);
    const to = fields.to.value === "" ? Infinity : Number(fields.to.value);
    const found = [];
    for (let task = 0; task < total; task++) {
      if (column.step[task] < from || column.step[task] > to) continue;
      if (fields.run.value !== "" && column.run[task] !== Number(fields.run.value)) continue;
      if (fields.type.value !== "" && column.type[task] !== Number(fields.type.value)) continue;
      if (fields.status.value !== "" && column.status[task] !== fields.status.value) continue;
      if (words.every((word) => haystack[task].includes(word))) found.push(task);
    }
    return found;
  }

  /** Undefined numbers stay at the end in both directions; equal ones keep the order of training. */
  function sort(found) {
    if (state.key === null) return found;
    const values = column[state.key];
    const way = state.descending ? -1 : 1;
    return found.sort((a, b) => {
      const [x, y] = [values[a], values[b]];
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      return (x < y ? -way : x > y ? way : 0) || a - b;
    });
  }

  function refresh() {
    state.found = sort(matching());
    state.page = 0;
    show();
  }

  function show() {
    const pages = Math.max(1, Math.ceil(state.found.length / PAGE));
    state.page = Math.min(Math.max(0, state.page), pages - 1);
    const begin = state.page * PAGE;
    const shown = state.found.slice(begin, begin + PAGE);
    byId("rows").replaceChildren(...shown.map(row));
    const many = (count) => count.toLocaleString("en");
    const range = shown.length ? `${many(begin + 1)}–${many(begin + shown.length)} of ` : "";
    const all = state.found.length < total ? ` (${many(total)} in all)` : "";
    byId("count").textContent = `${range}${many(state.found.length)} tasks${all}`;
    byId("page").textContent = `page ${state.page + 1} of ${pages}`;
    byId("first").disabled = byId("previous").disabled = state.page === 0;
    byId("last").disabled = byId("next").disabled = state.page === pages - 1;
  }

  function row(task) {
    const cells = COLUMNS.map((entry) => {
      if (!entry.main) {
        const mark = entry.mark ? entry.mark(task) : "";
        const content = make("span", { className: mark }, ...breakable(entry.text(task)));
        return make("td", { className: entry.numeric ? "numeric" : entry.key }, content);
      }
      const skill = column.skill[task] || "no skill text";
      const button = make("button", { type: "button", className: "open", "aria-expanded": "false", title: column.task_id[task] },
        make("span", { className: "skill" }, skill), make("span", { className: "id" }, shortId(column.task_id[task])));
      return make("td", { className: "main" }, button);
    });
    const element = make("tr", { className: "task" }, ...cells);
    element.dataset.task = task;
    return element;
  }

  /** Text that may break after its underscores. */
  function breakable(text) {
    return text.split(/(?<=_)/).flatMap((part, place) => (place ? [make("wbr"), part] : [part]));
  }

  /** A game's path without what all games share. */
  function shortId(id) {
    const parts = id.split("/").filter((part) => !/^(json_[\d.]+|train|valid_\w+|game\.tw-pddl)$/.test(part));
    return parts.join(" / ") || id;
  }

  const heads = COLUMNS.map((entry) => {
    const button = make("button", { type: "button", title: entry.hint ? `Sort by ${entry.hint}` : `Sort by ${entry.label.toLowerCase()}` }, entry.label);
    const head = make("th", { scope: "col", className: entry.numeric ? "numeric" : entry.main ? "main" : entry.key, "aria-sort": "none" }, button);
    button.addEventListener("click", () => {
      const again = state.key === entry.key;
      const first = Boolean(entry.numeric) && entry.key !== "step";
      state.descending = again ? !state.descending : first;
      state.key = entry.key;
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
      refresh();
    });
    return head;
  });
  byId("heads").append(...heads);

  let waiting = 0;
  fields.search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(refresh, 120);
  });
  for (const id of ["run", "type", "status"]) fields[id].addEventListener("change", refresh);
  for (const id of ["from", "to"]) fields[id].addEventListener("input", refresh);
  document.querySelector(".filters").addEventListener("reset", () => setTimeout(refresh));
  document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
  const turn = { first: () => 0, previous: () => state.page - 1, next: () => state.page + 1, last: () => Infinity };
  for (const [id, page] of Object.entries(turn)) {
    byId(id).addEventListener("click", () => {
      state.page = page();
      show();
    });
  }

  // ------------------------------------------------------------------ keyboard and opening

  byId("rows").addEventListener("click", (event) => {
    const line = event.target.closest("tr.task");
    const selecting = getSelection().toString() && !event.target.closest("button");
    if (line && !selecting) toggle(line);
  });
  byId("rows").addEventListener("keydown", (event) => {
    const line = event.target.closest("tr.task");
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (line && move) {
      const lines = [...byId("rows").querySelectorAll("tr.task")];
      const next = lines[lines.indexOf(line) + move];
      if (next) {
        event.preventDefault();
        next.querySelector("button.open").focus();
      }
    }
    if (event.key === "Escape") {
      const opened = line ?? event.target.closest("tr.details")?.previousElementSibling;
      if (opened?.classList.contains("opened")) {
        toggle(opened);
        opened.querySelector("button.open").focus();
      }
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      fields.search.focus();
    }
  });

  async function toggle(line) {
    const button = line.querySelector("button.open");
    const opened = line.classList.toggle("opened");
    button.setAttribute("aria-expanded", opened);
    if (!opened) {
      line.nextElementSibling.remove();
      return;
    }
    const cell = make("td", { colSpan: COLUMNS.length }, make("p", { className: "muted" }, "…"));
    line.after(make("tr", { className: "details" }, cell));
    const task = Number(line.dataset.task);
    try {
      const details = await unpack(column.run[task], column.step[task]);
      cell.replaceChildren(describe(details[position[task]], checks[column.run[task]]));
    } catch (error) {
      cell.replaceChildren(make("p", { className: "warn" }, `These details cannot be shown: ${error.message}`));
    }
  }

  const unpacked = new Map();
  function unpack(run, step) {
    const id = `chunk-${run}-${step}`;
    if (!unpacked.has(id)) {
      if (!("DecompressionStream" in window)) return Promise.reject(new Error("this browser is too old to unpack them"));
      const bytes = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
      unpacked.set(id, new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json());
    }
    return unpacked.get(id);
  }

  // ------------------------------------------------------------------ what a row opens to

  function describe(task, check) {
    return make("div", { className: "detail" },
      make("p", { className: "path" }, `Step ${task.step} · ${task.task_id}`),
      make("div", { className: "columns" },
        make("div", {}, skillPart(task), trajectoryPart(task)),
        make("div", {}, episodesPart(task), estimatesPart(task, check))));
  }

  function skillPart(task) {
    const { skill } = task;
    const title = make("h4", {}, "Skill ");
    if (!skill) return make("section", {}, title, make("p", { className: "muted" }, task.evidence_index === null ? "None: no usable evidence rollout." : "None: its writing was lost."));
    title.append(make("span", { className: `tag ${skill.valid ? "valid" : "invalid"}` }, skill.valid ? "valid" : skill.reason.replaceAll("_", " ")));
    if (skill.leaks_answer) title.append(" ", make("span", { className: "tag invalid" }, "holds a gold answer"));
    const text = skill.text === null ? make("p", { className: "muted" }, "No skill could be read from the answer.") : make("blockquote", {}, skill.text);
    const sizes = `${skill.tokens} tokens written, ${skill.masked_tokens} in the skill loss` + (task.analysis_prompt_version ? ` · prompt ${task.analysis_prompt_version}` : "");
    return make("section", {}, title, text, make("p", { className: "muted small" }, sizes));
  }

  function episodesPart(task) {
    const groups = [
      ["Evidence rollouts", task.rollouts.filter((rollout) => rollout.role === "evidence")],
      ["Control rollouts", task.rollouts.filter((rollout) => rollout.role === "control")],
      ["Replays with the skill", task.replays],
    ];
    return make("section", {}, make("h4", {}, "Episodes"), ...groups.map(([label, episodes]) =>
      make("div", { className: "episodes" }, make("span", { className: "label" }, label),
        make("ul", {}, ...(episodes.length ? episodes.map((episode) => chip(episode, task)) : [make("li", { className: "muted" }, "none")])))));
  }

  function chip(episode, task) {
    const usable = episode.status === "ok";
    const outcome = !usable ? episode.status : episode.success ? "success" : "failure";
    const chosen = episode.role === "evidence" && episode.index === task.evidence_index;
    const words = [chosen ? "the skill was written from this one" : null, outcome, `${episode.turns} turns`,
      episode.invalid_actions ? `${episode.invalid_actions} invalid actions` : null, episode.state_matched === false ? "other initial state" : null].filter(Boolean).join(", ");
    const sign = !usable ? "?" : episode.success ? "✓" : "✗";
    const text = `${chosen ? "★ " : ""}${sign} ${episode.turns}${episode.state_matched === false ? " ≠" : ""}`;
    return make("li", { className: `chip ${outcome}`, title: words }, make("span", { "aria-hidden": "true" }, text), make("span", { className: "sr" }, words));
  }

  function estimatesPart(task, check) {
    const utilities = (episodes) => {
      const played = episodes.filter((episode) => episode.status === "ok");
      if (!played.length || !check) return null;
      return played.reduce((sum, e) => sum + (e.success ? 1 - (check.alpha * e.turns) / check.max_turns : 0), 0) / played.length;
    };
    const replays = utilities(task.replays);
    const control = utilities(task.rollouts.filter((rollout) => rollout.role === "control"));
    const lines = [
      ["Δ", "replay gain", signed(task.gain), task.gain === null ? "nothing valid to compare" : `replays ${number(replays)} − control ${number(control)}`, side(task.gain)],
      ["v", "its noise variance", number(task.noise_variance), "", ""],
      ["Δ̄", "type mean", signed(task.type_mean), `type variance ${number(task.type_variance)}`, ""],
      ["w", "shrinkage weight", number(task.shrinkage_weight), "", ""],
      ["ĝ", "shrunk gain", signed(task.shrunk_gain), task.gain === null ? "the type mean" : "w Δ + (1 − w) Δ̄", side(task.shrunk_gain)],
      ["r", "skill reward", signed(task.skill_reward), reward(task), side(task.skill_reward)],
      ["ω", "trust", number(task.trust), check ? `1 + ${check.kappa} ĝ, within 0 and ${check.omega_max}` : "", side(task.trust, 1)],
    ];
    const table = make("table", { className: "estimates" }, make("tbody", {}, ...lines.map(([symbol, name, value, note, mark]) =>
      make("tr", {}, make("th", { scope: "row" }, make("var", {}, symbol), ` ${name}`), make("td", { className: `numeric ${mark}` }, value), make("td", { className: "muted small" }, note)))));
    return make("section", {}, make("h4", {}, "Estimates"), table);
  }

  function reward(task) {
    if (task.skill && !task.skill.valid) return "penalty of an invalid skill";
    if (task.state_matched === false) return "a replay began in another state";
    return task.gain === null ? "" : "Δ − Δ̄";
  }

  function trajectoryPart(task) {
    const title = make("h4", {}, "Evidence trajectory ");
    const { transcript } = task;
    if (!transcript) {
      const why = task.evidence_index === null ? "There is none: no evidence rollout was usable." : "Not recorded: this run is older than transcripts in the audit.";
      return make("section", {}, title, make("p", { className: "muted" }, why));
    }
    title.append(make("span", { className: `tag ${transcript.success ? "valid" : "invalid"}` }, transcript.success ? "success" : "failure"),
      make("span", { className: "muted small" }, ` rollout ${transcript.index}, ${transcript.turns.length} turns`));
    const turns = transcript.turns.map((turn) => {
      const flag = !turn.valid ? "invalid" : !turn.admissible ? "not admissible" : null;
      return make("li", {}, make("p", { className: "observation" }, turn.observation),
        make("p", { className: "action" }, make("code", {}, turn.action), flag ? make("span", { className: "tag invalid" }, flag) : null));
    });
    return make("section", {}, title, make("p", { className: "task-text" }, transcript.instruction),
      make("ol", { className: "turns", tabIndex: 0, "aria-label": "Turns" }, ...turns, make("li", { className: "final" }, make("p", { className: "observation" }, transcript.final_observation))));
  }

  byId("browser").hidden = false;
  refresh();
})();
