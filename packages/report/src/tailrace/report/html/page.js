"use strict";
// Draws the charts one after another, so that the page shows at once, and again when the colour scheme changes.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");

  const fewest = 8; // a longer list of numbers or words holds data, a shorter one may be a step of a colour scale

  // A colour "$name" is the custom property --name of the style sheet.
  function themed(value, style) {
    if (typeof value === "string" && value[0] === "$") return style.getPropertyValue("--" + value.slice(1)).trim();
    if (Array.isArray(value)) {
      const plain = value.length > fewest && typeof value[0] !== "object";
      return plain ? value : value.map((item) => themed(item, style));
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, style)]));
    }
    return value;
  }

  function over(base, more) {
    const merged = { ...base };
    for (const [key, item] of Object.entries(more)) {
      const plain = item && typeof item === "object" && !Array.isArray(item);
      merged[key] = plain ? over(base[key] && typeof base[key] === "object" ? base[key] : {}, item) : item;
    }
    return merged;
  }

  const axis = {
    gridcolor: "$rule", zerolinecolor: "$rule", linecolor: "$rule", tickcolor: "$rule", automargin: true,
    title: { font: { size: 12, color: "$muted" }, standoff: 10 }, tickfont: { size: 11, color: "$muted" },
  };
  const common = {
    autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif", size: 12, color: "$ink" },
    margin: { l: 56, r: 14, t: 26, b: 48 }, hovermode: "closest", bargap: 0.12,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 }, bgcolor: "rgba(0,0,0,0)" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: "$muted", activecolor: "$ink" },
    hoverlabel: { bgcolor: "$card", bordercolor: "$rule", font: { color: "$ink", size: 12 }, align: "left" },
  };
  // One button, on hover: save the chart as SVG, to print or to put into a document.
  const config = {
    responsive: true, displaylogo: false, modeBarButtons: [["toImage"]], toImageButtonOptions: { format: "svg" },
  };

  function draw(chart, style) {
    let layout = common;
    for (const key of ["xaxis", "yaxis", "xaxis2", "yaxis2"]) {
      if (key in chart.layout || key === "xaxis" || key === "yaxis") layout = over(layout, { [key]: axis });
    }
    layout = themed(over(layout, chart.layout), style);
    return Plotly.react("chart-" + chart.id, themed(chart.data, style), layout, config);
  }

  async function drawAll() {
    const style = getComputedStyle(document.documentElement);
    for (const chart of charts) {
      await draw(chart, style);
      await new Promise((resume) => setTimeout(resume));
    }
    document.documentElement.dataset.drawn = "yes";
  }

  scheme.addEventListener("change", drawAll);
  drawAll();
})();
