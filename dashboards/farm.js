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
  const show = (event) => {
    const td = event.target.closest && event.target.closest("[data-t]");
    if (!td) { tip.style.display = "none"; return; }
    tip.textContent = heads(td) + "\n" + td.dataset.t;
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
  document.addEventListener("change", (event) => {
    if (!tabs.includes(event.target)) return;
    const top = event.target.getBoundingClientRect().top;
    choose(event.target.value);
    scrollBy(0, event.target.getBoundingClientRect().top - top); // the table stays where it is in the window
    const address = new URL(location);
    address.searchParams.set("dtype", event.target.value);
    try { history.replaceState(null, "", address); } catch { /* a page inside a sandboxed frame */ }
  });
  choose(new URL(location).searchParams.get("dtype"));

  for (const command of navigator.clipboard ? document.querySelectorAll("pre.cmd") : []) {
    const button = document.createElement("button"), text = command.textContent;
    button.textContent = "copy";
    button.onclick = () => navigator.clipboard.writeText(text)
      .then(() => { button.textContent = "copied"; });
    command.prepend(button);
  }
})();
