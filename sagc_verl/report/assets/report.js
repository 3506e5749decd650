"use strict";
(function () {
  if (typeof Plotly === "undefined") { return; }
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("screen and (prefers-color-scheme: dark)");

  // "@series0" is the colour --series0 of the palette in force; "@band0" the same, faint.
  function colour(name) {
    const faint = name.startsWith("band");
    const key = "--" + (faint ? "series" + name.slice(4) : name);
    const value = getComputedStyle(document.documentElement).getPropertyValue(key).trim();
    return faint ? value + "2e" : value;
  }
  function coloured(value) {
    if (typeof value === "string") { return /^@[a-z]+\d*$/.test(value) ? colour(value.slice(1)) : value; }
    if (Array.isArray(value)) { return value.length && typeof value[0] === "number" ? value : value.map(coloured); }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, coloured(inner)]));
    }
    return value;
  }
  function axis(own) {
    const base = { gridcolor: "@rule", zerolinecolor: "@rule", linecolor: "@rule", automargin: true, title: { standoff: 10 } };
    return { ...base, ...own, title: { ...base.title, ...(own || {}).title } };
  }
  function layoutOf(own) {
    const base = {
      height: 300,
      margin: { l: 8, r: 10, t: 10, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "@muted" },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: "@text" } },
      hovermode: "closest",
      hoverlabel: { namelength: 60 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "@muted", activecolor: "@text" },
    };
    return coloured({
      ...base, ...own, legend: { ...base.legend, ...own.legend }, xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
    });
  }
  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg" },
  };
  function draw() {
    figures.forEach((figure, place) => {
      Plotly.react("plot" + place, coloured(figure.data), layoutOf(figure.layout), config);
    });
  }
  // Pages are laid out after this event, so the sizes for paper (A4 or letter, two columns) are given, not measured.
  function drawForPaper() {
    figures.forEach((figure, place) => {
      const wide = document.getElementById("plot" + place).parentElement.classList.contains("wide");
      const size = wide ? { width: 676 } : { width: 330, height: 250 };
      const layout = { ...layoutOf(figure.layout), autosize: false, ...size };
      layout.legend.font.size = 10;
      Plotly.react("plot" + place, coloured(figure.data), layout, { ...config, responsive: false });
    });
  }
  draw();
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", drawForPaper);
  window.addEventListener("afterprint", draw);
})();
