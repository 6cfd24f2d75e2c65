window.csHeadsViews ||= (() => {
  // Heads have the colors of their marks, and not those that CircuitsVis gives them.
  const paint = view => {
    const looks = JSON.parse(view.dataset.looks);
    for (const name of view.querySelectorAll("h4, h2")) {
      const look = looks[name.textContent];
      if (!look) continue;
      const [color, ink] = look;
      const places = [[name, "background-color", color], [name, "color", ink]];
      if (name.tagName === "H4") places.push([name.parentElement, "border-color", color]);
      for (const [place, property, value] of places) {
        const set = place.dataset[`set${property.replace("-", "")}`];
        if (set === value && place.style.getPropertyPriority(property === "border-color" ? "border-top-color" : property)) continue;
        place.style.setProperty(property, value, "important");
        place.dataset[`set${property.replace("-", "")}`] = value;
      }
    }
  };

  // What is done to one of the two views is done to the other: both show the same head.
  const other = (node, from, to) => {
    const steps = [];
    for (; node && node !== from; node = node.parentElement) steps.unshift([...node.parentElement.children].indexOf(node));
    return steps.reduce((place, step) => place && place.children[step], to);
  };
  const repeat = event => {
    const view = event.isTrusted && event.target.closest && event.target.closest(".cs-attention");
    if (!view) return;
    const places = [...view.querySelectorAll(":scope > section > div")];
    const from = places.find(place => place.contains(event.target));
    for (const to of places.filter(place => from && place !== from)) {
      const target = other(event.target, from, to);
      const near = from.contains(event.relatedTarget) ? other(event.relatedTarget, from, to) : null;
      if (target) target.dispatchEvent(new MouseEvent(event.type, { bubbles: true, cancelable: true, relatedTarget: near }));
    }
  };
  for (const kind of ["mouseover", "mouseout", "click"]) document.addEventListener(kind, repeat, true);

  return view => {
    paint(view);
    new MutationObserver(() => paint(view)).observe(view, {
      subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ["style"],
    });
  };
})();
