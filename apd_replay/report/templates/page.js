// Click a column's head to sort by it, rest on a number to see all its digits; the page is complete without this.
document.addEventListener("mouseover", (event) => { const cell = event.target.closest("td[data-v]"); if (cell) cell.title = cell.dataset.v; });
document.querySelectorAll("th[data-sort]").forEach((head) => head.addEventListener("click", () => {
  const column = head.cellIndex, body = head.closest("table").tBodies[0], up = head.dataset.sort !== "up";
  head.closest("tr").querySelectorAll("th").forEach((other) => { other.dataset.sort = ""; other.removeAttribute("aria-sort"); });
  head.dataset.sort = up ? "up" : "down";
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => { const cell = row.cells[column], raw = cell.dataset.v; return raw === undefined ? cell.textContent : raw === "inf" ? Infinity : Number(raw); };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? (a < b ? -1 : a > b ? 1 : 0) : String(a).localeCompare(String(b), undefined, { numeric: true });
  [...body.rows].sort((a, b) => (up ? 1 : -1) * compare(key(a), key(b))).forEach((row) => body.append(row));
}));
