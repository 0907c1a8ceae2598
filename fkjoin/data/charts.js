// Charts: curves over the last hour and stacked bars of recent batches, drawn by uPlot.
/* global uPlot */
import { clock } from "./words.js";

const HEIGHT = 170;
const COLORS = 8;

const dark = matchMedia("(prefers-color-scheme: dark)");

const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const seriesColor = place => color(`--series-${place % COLORS}`);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Steps of axes: of bytes, of whole records, and of times in seconds.
export const BYTES = Array.from({length: 50}, (_, power) => 2 ** power);
export const WHOLE = Array.from({length: 15}, (_, power) => [1, 2, 5].map(first => first * 10 ** power)).flat();
export const TIMES = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];

// A card with a title, a legend and a chart, or with words while there is nothing to draw.
export class Chart {
  // `about`: {title, hint, format, empty, incrs}; `incrs`: steps of the axis, uPlot's own if left out
  constructor(place, about) {
    this.about = about;
    this.card = element("figure", "card chart");
    const title = element("figcaption", "", about.title);
    title.title = about.hint;
    this.legend = element("ul", "legend");
    this.field = element("div", "field");
    this.field.setAttribute("role", "img");
    this.empty = element("p", "empty", about.empty);
    this.card.append(title, this.legend, this.field, this.empty);
    place.append(this.card);
    new ResizeObserver(() => this.resize()).observe(this.field);
    dark.addEventListener("change", () => this.rebuild());
  }

  // Curves: `time` in seconds, `series` as [name, values, hint], `range` of the time that is shown.
  curves(time, series, range) {
    this.show({kind: "curves", x: time, series, range});
  }

  // Stacked bars: a label and a value of each series for each bar, oldest first.
  bars(labels, series) {
    this.show({kind: "bars", x: labels.map((_, at) => at), labels, series});
  }

  show(data) {
    const names = data.series.map(([name]) => name).join("\n");
    const fresh = !this.data || !this.plot || names !== this.names || data.kind !== this.data.kind;
    this.data = data;
    this.names = names;
    const nothing = !data.x.length || !data.series.some(([, values]) => values.some(value => value != null));
    this.card.classList.toggle("nothing", nothing);
    if (nothing) this.field.removeAttribute("aria-label");
    if (nothing) return this.clear();
    if (fresh) return this.rebuild();
    this.plot.setData(this.drawn());
    this.tell(this.plot.cursor.idx);
  }

  clear() {
    this.plot?.destroy();
    this.plot = null;
  }

  rebuild() {
    this.clear();
    if (!this.data || this.card.classList.contains("nothing") || !this.field.clientWidth) return;
    this.items = this.data.series.map(([name, , hint], place) => legendItem(name, hint, seriesColor(place)));
    this.legend.replaceChildren(...this.items.map(item => item.line));
    this.plot = new uPlot(this.options(), this.drawn(), this.field);
    this.tell(null);
  }

  resize() {
    if (!this.field.clientWidth) return;
    if (this.plot) this.plot.setSize({width: this.field.clientWidth, height: HEIGHT});
    else this.rebuild();
  }

  // What uPlot gets: the curves; of bars, sums, the whole first, so that each lies on the one behind it.
  drawn() {
    const values = this.data.series.map(([, one]) => one);
    if (this.data.kind === "curves") return [this.data.x, ...values];
    return [this.data.x, ...stacked(values).reverse()];
  }

  options() {
    const bars = this.data.kind === "bars";
    const places = this.data.series.map((_, place) => place);
    const grid = {stroke: color("--line"), width: 1};
    const axis = {stroke: color("--muted"), font: "11px system-ui", grid, ticks: {show: false}};
    return {
      width: this.field.clientWidth,
      height: HEIGHT,
      legend: {show: false},
      padding: [8, 26, 0, 0],
      cursor: {y: false, drag: {setScale: false, x: false, y: false}, points: {show: !bars}},
      scales: {
        x: {time: false, range: () => bars ? [-0.6, Math.max(this.data.x.length, 8) - 0.4] : this.data.range},
        y: {range: (_, low, high) => [0, (high || 1) * 1.08]},
      },
      axes: [
        {...axis, grid: {show: false}, space: 60, size: 26, incrs: bars ? WHOLE : TIMES, values: (_, splits) => splits.map(at => this.mark(at))},
        {...axis, size: 58, space: 34, incrs: this.about.incrs, values: (_, splits) => splits.map(this.about.format)},
      ],
      series: [{}, ...(bars ? places.reverse().map(barSeries) : places.map(curveSeries))],
      hooks: {setCursor: [plot => this.tell(plot.cursor.idx)]},
    };
  }

  // What stands below a place of the x axis.
  mark(at) {
    if (this.data.kind === "bars") return this.data.labels[at] ?? "";
    return clock(at * 1000, this.data.range[1] - this.data.range[0] < 600);
  }

  // The values where the pointer is, or the last ones, in the legend; the last ones for those who do not see the chart.
  tell(place) {
    const {x, series} = this.data;
    const texts = series.map(([name, values], at) => {
      const text = this.about.format(values[place ?? last(values)]);
      this.items[at].value.textContent = text;
      return `${name} ${text}`;
    });
    this.legend.dataset.at = place == null ? "" : this.mark(x[place]);
    if (place == null) this.field.setAttribute("aria-label", `${this.about.title}: ${texts.join(", ")}`);
  }
}

function last(values) {
  let at = values.length - 1;
  while (at > 0 && values[at] == null) at -= 1;
  return at;
}

function stacked(series) {
  let below = null;
  return series.map(values => {
    below = values.map((value, at) => (value ?? 0) + (below ? below[at] : 0));
    return below;
  });
}

const curveSeries = place => ({
  stroke: seriesColor(place), width: 1.75, fill: place ? undefined : `${seriesColor(0)}22`, spanGaps: false,
  points: {show: false, filter: alone, size: 6, fill: seriesColor(place)},
});

// Points without a neighbor, through which no line goes.
function alone(plot, series) {
  const values = plot.data[series];
  return [...values.keys()].filter(at => values[at] != null && values[at - 1] == null && values[at + 1] == null);
}

const barSeries = place => ({
  stroke: seriesColor(place), fill: seriesColor(place), width: 0, points: {show: false}, paths: uPlot.paths.bars({size: [0.8, 28]}),
});

function legendItem(name, hint, tint) {
  const line = element("li");
  if (hint) line.title = hint;
  const swatch = element("span", "swatch");
  swatch.style.background = tint;
  const value = element("b");
  line.append(swatch, element("span", "", name), value);
  return {line, value};
}
