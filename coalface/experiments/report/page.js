// Sorts a table by the column whose head is pressed: numbers by size, an empty cell last, the sum at the end.
for (const table of document.querySelectorAll("table:has(thead + tbody)")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const key = (row, column) => row.cells[column].textContent.trim().replaceAll("−", "-").replaceAll(",", "");
  const number = (text) => /^\d+(:\d\d)+$/.test(text)
    ? text.split(":").reduce((seconds, part) => 60 * seconds + Number(part), 0)
    : parseFloat(text) * ({ kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 }[text.split(" ")[1]] ?? 1);
  const compare = (a, b) => Number.isNaN(number(a) + number(b)) ? a.localeCompare(b, "en", { numeric: true }) : number(a) - number(b);
  if (body.rows.length > 2) heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.className = "sorts";
    button.append(...head.childNodes);
    if (!button.textContent) return;
    head.append(button);
    button.onclick = () => {
      const down = head.ariaSort === "ascending" ? -1 : 1;
      const rows = [...body.rows].filter((row) => !row.classList.contains("total"));
      rows.sort((a, b) => !key(a, column) - !key(b, column) || down * compare(key(a, column), key(b, column)));
      body.prepend(...rows);
      heads.forEach((other) => { other.ariaSort = null; });
      head.ariaSort = down > 0 ? "ascending" : "descending";
    };
  });
}

// What is wider than its place can be reached and moved by keys.
const scrolled = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  target.scrollWidth > target.clientWidth ? target.tabIndex = 0 : target.removeAttribute("tabindex");
}));
document.querySelectorAll(".scroll, pre").forEach((place) => scrolled.observe(place));

// Puts a live chart in the place of each drawn one: values on hover, series picked by the legend, zoom, files to save.
(async () => {
  const text = (id) => document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text("vega")), (letter) => letter.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const library = document.createElement("script");
  library.textContent = await new Response(inflated).text();
  document.head.append(library);

  // `ast`: expressions are interpreted, since the page's policy lets no text become code.
  const options = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, config: JSON.parse(text("vega-config")) };
  const embed = (place, spec) => vegaEmbed(place, spec, options);

  const cell = (value) => typeof value === "string" ? `"${value.replace(/^[=+\-@]/, "'$&").replaceAll('"', '""')}"` : value ?? "";
  const csv = (rows) => {
    const columns = [...new Set(rows.flatMap(Object.keys))];
    const lines = [columns, ...rows.map((row) => columns.map((column) => row[column]))];
    return lines.map((line) => line.map(cell).join(",") + "\n").join("");
  };
  const address = async (kind, spec, title) => {
    if (kind === "csv") return URL.createObjectURL(new Blob([csv(spec.data.values)], { type: "text/csv" }));
    const { view } = await embed(document.createElement("div"), { ...spec, title, width: 560 });
    return view.toImageURL(kind, 2);
  };
  const button = (kind, spec, title) => {
    const saves = document.createElement("button");
    saves.textContent = kind.toUpperCase();
    saves.setAttribute("aria-label", `Save ${title} as ${saves.textContent}`);
    saves.onclick = async () => {
      const link = document.createElement("a");
      link.href = await address(kind, spec, title);
      link.download = `${title.replace(/[^\p{L}\p{N}@.=]+/gu, "-")}.${kind}`;
      link.click();
    };
    return saves;
  };

  // A chart is made live when it comes into view: then it has a width, also one that was folded away.
  const watch = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(async ({ target }) => {
    watch.unobserve(target);
    const spec = JSON.parse(target.querySelector("script").textContent), title = target.querySelector("h3").textContent;
    await embed(target.querySelector(".chart"), { ...spec, width: "container" });
    target.querySelector("svg").ariaHidden = "true";  // the place around it has its name
    const saves = document.createElement("p");
    saves.className = "saves";
    saves.append("save ", ...["svg", "png", "csv"].map((kind) => button(kind, spec, title)));
    target.append(saves);
  }));
  document.querySelectorAll("figure:has(.chart)").forEach((figure) => watch.observe(figure));
})();
