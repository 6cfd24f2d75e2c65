(() => {
document.documentElement.classList.add("js");
const told = document.querySelector(".told");

// Copy buttons.
async function copy(text) {
  try { await navigator.clipboard.writeText(text); } catch {
    // Where the clipboard is refused to a file, as in some browsers.
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw Error("not copied");
  }
}
for (const button of document.querySelectorAll("button.copy")) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    try { await copy(button.dataset.copy); button.textContent = "Copied"; } catch { button.textContent = "Not copied"; }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
}

// What is told of the square of a map that the pointer is at.
for (const cells of document.querySelectorAll(".cells")) {
  const texts = JSON.parse(cells.firstElementChild.textContent), { rows, columns } = cells.dataset;
  const show = event => {
    const box = cells.getBoundingClientRect(), limit = (share, n) => Math.min(n - 1, Math.max(0, Math.floor(share * n)));
    const row = limit((event.clientY - box.top) / box.height, rows), column = limit((event.clientX - box.left) / box.width, columns);
    told.textContent = texts[row * columns + column];
    told.style.display = "block";
    const left = Math.min(event.clientX + 14, innerWidth - told.offsetWidth - 6), below = event.clientY + 16;
    told.style.left = `${Math.max(6, left)}px`;
    told.style.top = `${below + told.offsetHeight > innerHeight ? event.clientY - told.offsetHeight - 12 : below}px`;
  };
  cells.addEventListener("pointermove", show);
  cells.addEventListener("pointerdown", show);
  cells.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") told.style.display = "none"; });
}
addEventListener("scroll", () => { told.style.display = "none"; }, { passive: true, capture: true });
addEventListener("pointerdown", event => { if (!event.target.closest(".cells")) told.style.display = "none"; });

// What is folded is printed, too.
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
})();
