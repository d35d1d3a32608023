// The page is complete without this. It adds tips, tabs that switch together, and a button that copies a command.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  document.body.append(tip);

  const heads = (td) => { // the headings of a cell's row and column
    const table = td.closest("table"), line = td.parentNode, rows = table.tHead.rows;
    const mode = rows[rows.length - 1].cells[td.cellIndex - (rows.length > 1 ? 1 : 0)];
    let at = 0;
    const provider = rows.length > 1 && [...rows[0].cells].slice(1).find((th) => (at += th.colSpan) >= td.cellIndex);
    const body = td.closest("tbody").querySelector("th.body");
    return [line.cells[0].textContent, [provider, mode].filter(Boolean).map((e) => e.textContent).join("/"),
      body ? body.textContent : ""].filter(Boolean).join(" · ");
  };
  const picks = [...document.querySelectorAll(".pick > input")];
  const values = (td) => picks.map((pick) => { // everything that the cell can show
    const value = td.querySelector(`p:nth-of-type(${pick.id.slice(4)})`);
    return value && value.textContent && `${value.firstChild.data} ${pick.labels[0].textContent}`;
  }).filter(Boolean).join(", ");
  const show = (event) => {
    const td = event.target.closest && event.target.closest("[data-t]");
    if (!td) { tip.style.display = "none"; return; }
    tip.textContent = [heads(td), values(td), td.dataset.t].filter(Boolean).join("\n");
    tip.style.display = "block";
    const box = td.getBoundingClientRect(), wide = document.documentElement.clientWidth;
    tip.style.left = Math.max(4, Math.min(box.left, wide - tip.offsetWidth - 8)) + "px";
    const under = box.bottom + 4;
    tip.style.top = (under + tip.offsetHeight > innerHeight ? box.top - tip.offsetHeight - 4 : under) + "px";
  };
  document.addEventListener("mouseover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("scroll", () => { tip.style.display = "none"; }, { passive: true, capture: true });

  const tabs = [...document.querySelectorAll(".tabs > input")];
  const choose = (name) => tabs.filter((t) => t.value === name).forEach((t) => { t.checked = true; });
  const note = (name, value) => { // so that the address can be sent
    const address = new URL(location);
    address.searchParams.set(name, value);
    try { history.replaceState(null, "", address); } catch { /* a page inside a sandboxed frame */ }
  };
  document.addEventListener("change", (event) => {
    if (picks.includes(event.target)) note("show", event.target.value);
    if (!tabs.includes(event.target)) return;
    const top = event.target.getBoundingClientRect().top;
    choose(event.target.value);
    scrollBy(0, event.target.getBoundingClientRect().top - top); // the table stays where it is in the window
    note("dtype", event.target.value);
  });
  choose(new URL(location).searchParams.get("dtype"));
  picks.filter((p) => p.value === new URL(location).searchParams.get("show")).forEach((p) => { p.checked = true; });

  for (const command of navigator.clipboard ? document.querySelectorAll("pre.cmd") : []) {
    const box = document.createElement("div"), button = document.createElement("button");
    box.className = "cmdbox"; // beside the command, never in it: no line of it ends at the button
    command.replaceWith(box);
    box.append(command, button);
    const text = command.textContent;
    command.replaceChildren(...text.split(/(--[\w-]+)/).map((word, i) => { // no line ends within an option's name
      const span = document.createElement("span");
      span.textContent = word;
      return i % 2 ? span : word;
    }));
    button.textContent = "copy";
    button.onclick = () => navigator.clipboard.writeText(text)
      .then(() => { button.textContent = "copied"; });
  }
})();
