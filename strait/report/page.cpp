#include "strait/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "strait/report/metrics.h"
#include "strait/report/quantities.h"

namespace strait::report {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1c2128;--dim:#5b6470;
--line:#dfe3e8;--plan:#9db2c9;--compute:#4f86c0;--exposed:#ec8b4f;
--other:#b9bec5;--good:#1a7f43;--bad:#c0362c}
@media(prefers-color-scheme:dark){:root{--page:#14171b;--card:#1d2127;--text:#e4e7eb;--dim:#9aa4b0;
--line:#333a43;--plan:#5b7189;--other:#6b737d;--good:#4cc27d;--bad:#f0766c}
figure svg{filter:invert(.885) hue-rotate(180deg)}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:1.5rem;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:0 0 10px}
p{margin:0 0 8px}.dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;
margin-top:16px}
.grid{display:grid;gap:16px;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
.grid>section{margin-top:0;min-width:0}.grid{margin-top:16px}
.key{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(140px,1fr))}
.key b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
.key span{color:var(--dim);font-size:.85rem}
figure{margin:0}figure svg{display:block;width:100%;height:auto;border-radius:6px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:5px 8px;border-top:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0;white-space:normal}
tr:first-child>th{border-top:0}th{color:var(--dim);font-weight:500}
.bar{display:flex;height:18px;border-radius:4px;overflow:hidden;background:var(--line);
margin:2px 0 8px}
.bar i{display:block;height:100%}.legend{font-size:.85rem}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 0}
.legend span{margin-right:14px;white-space:nowrap}
@media(max-width:480px){section{padding:14px 12px}table{font-size:.82rem}th,td{padding:5px 4px}}
pre{margin:0;overflow-x:auto;font:13px/1.45 ui-monospace,monospace}summary{cursor:pointer}
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

/// A member below members, or nullptr when one of them is missing.
const Json* find(const Json& json, std::initializer_list<const char*> path) {
  const Json* at = &json;
  for (const char* key : path) {
    if (!at->is_object()) return nullptr;
    at = at->find(key);
    if (at == nullptr) return nullptr;
  }
  return at;
}

double number(const Json& json, std::initializer_list<const char*> path) {
  const Json* found = find(json, path);
  return found != nullptr && found->is_number() ? found->as_number() : kUnknown;
}

std::string word(const Json& json, std::initializer_list<const char*> path) {
  const Json* found = find(json, path);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}

/// The elements of a list; none where it is missing or no list.
const Json::Array& elements(const Json* list) {
  static const Json::Array kNone;
  return list != nullptr && list->is_array() ? list->as_array() : kNone;
}

constexpr const char* kDash = "–";

template <class Text>
std::string known(double value, Text text) {
  return std::isfinite(value) ? text(value) : kDash;
}
std::string bytes_cell(double value) { return known(value, bytes_text); }
std::string loss_cell(double value) {
  return known(value, [](double loss) { return fmt::format("{:.4f}", loss); });
}

/// How far the measured value lies from the plan.
std::string difference(double plan, double measured) {
  if (!std::isfinite(plan) || !std::isfinite(measured)) return kDash;
  if (plan == measured) return "equal";
  if (plan <= 0) return kDash;
  if (measured > 10 * plan) return fmt::format("x {:.0f}", measured / plan);
  const double percent = 100 * (measured / plan - 1);
  return std::abs(percent) < 0.05 ? "0.0 %" : fmt::format("{:+.1f} %", percent);
}

using Row = std::vector<std::string>;

/// Cells are HTML.
std::string table(const Row& head, const std::vector<Row>& rows) {
  std::string html = "<div class=wide><table>";
  const auto line = [&](const Row& cells, const char* tag) {
    html += "<tr>";
    for (const std::string& cell : cells) html += fmt::format("<{0}>{1}</{0}>", tag, cell);
    html += "</tr>";
  };
  line(head, "th");
  for (const Row& row : rows) line(row, "td");
  return html + "</table></div>";
}

std::string section(const char* title, const std::string& content) {
  return fmt::format("<section><h2>{}</h2>{}</section>\n", title, content);
}

std::string key_figure(const char* title, const std::string& value) {
  return fmt::format("<div><b>{}</b><span>{}</span></div>", value, title);
}

std::string head_line(const PageInput& input) {
  const Json& summary = input.summary;
  const double done = number(summary, {"last_step"}), total = number(input.plan, {"total_steps"});
  std::string text =
      std::isfinite(done) ? fmt::format("{} steps", count_text(done)) : "no whole step";
  if (std::isfinite(total)) text += fmt::format(" of {}", count_text(total));
  const std::string placement = word(input.train, {"placement"});
  if (!placement.empty())
    text += fmt::format(" on {} ranks, {}, {}", count_text(number(input.train, {"ranks"})),
                        escaped(placement), escaped(word(input.train, {"precision"})));
  return text;
}

std::string key_figures(const Json& summary) {
  std::string html = "<section class=key>";
  html += key_figure("training loss", loss_cell(number(summary, {"train_loss"})));
  html += key_figure("validation loss", loss_cell(number(summary, {"validation_loss"})));
  html +=
      key_figure("tokens per second", known(number(summary, {"tokens_per_second"}), count_text));
  html += key_figure("per step, median",
                     known(number(summary, {"seconds_per_step", "median"}), seconds_text));
  const double utilization = number(summary, {"model_flops_utilization"});
  html += key_figure(
      utilization > 1 ? "of the peak FLOP/s, which is assumed too low" : "of the peak FLOP/s",
      known(utilization, share_text));
  html += key_figure("waiting for links",
                     known(number(summary, {"exposed_communication_share"}), share_text));
  return html + "</section>\n";
}

std::string verdict(const PageInput& input) {
  std::string html;
  const std::string text = word(input.summary, {"verdict", "text"});
  if (!text.empty()) html += fmt::format("<p class=bad>{}</p>", escaped(text));
  for (const Json& failure : elements(find(input.summary, {"failures"})))
    html += fmt::format("<p>Rank {}, {}: {}</p>", count_text(number(failure, {"rank"})),
                        escaped(word(failure, {"kind"})), escaped(word(failure, {"message"})));
  if (!html.empty()) return section("Verdict", html);
  const double done = number(input.summary, {"last_step"}),
               total = number(input.plan, {"total_steps"});
  if (!std::isfinite(total))
    return section("Verdict", "<p>No rank left a record of a failure.</p>");
  return section("Verdict",
                 done >= total
                     ? "<p class=good>Complete; no rank left a record of a failure.</p>"
                     : "<p>Not at its last step; no rank left a record of a failure.</p>");
}

/// A figure without the prolog and document type of its file.
std::string figure(const std::string& svg) {
  return "<figure>" + svg.substr(std::min(svg.find("<svg"), svg.size())) + "</figure>";
}

std::string figures(const PageInput& input) {
  if (input.figures.empty())
    return section("Figures", fmt::format("<p class=dim>No figures: {}</p>",
                                          escaped(word(input.summary, {"plots_error"}))));
  std::string html = "<div class=grid>";
  for (const auto& [caption, svg] : input.figures)
    html += section(escaped(caption).c_str(), figure(svg));
  return html + "</div>\n";
}

std::string bar(double compute, double exposed, double whole) {
  const auto part = [&](double share, const char* colour) {
    return fmt::format("<i style=\"width:{:.2f}%;background:var(--{})\"></i>",
                       100 * std::clamp(share, 0.0, 1.0), colour);
  };
  return "<div class=bar>" + part(compute / whole, "compute") + part(exposed / whole, "exposed") +
         part(1 - (compute + exposed) / whole, "other") + "</div>";
}

std::string time_by_kind(const PageInput& input) {
  const double seconds = number(input.summary, {"seconds_per_step", "median"});
  const double compute = seconds * number(input.summary, {"compute_share"});
  const double exposed = seconds * number(input.summary, {"exposed_communication_share"});
  const double planned = number(input.plan, {"seconds_per_step"});
  const double planned_compute = number(input.plan, {"compute_seconds"});
  const double planned_exposed = number(input.plan, {"exposed_communication_seconds"});
  // What is left over; sums of shares are not exact.
  const auto rest = [](double whole, double parts) {
    const double left = whole - parts;
    return left < 1e-6 * whole ? 0.0 : left;
  };
  std::string html;
  if (std::isfinite(compute + exposed))
    html += "<p class=dim>Measured</p>" + bar(compute, exposed, seconds);
  if (std::isfinite(planned_compute + planned_exposed) && planned > 0)
    html += fmt::format("<p class=dim>Plan{}</p>", escaped(word(input.plan, {"prediction_note"}))) +
            bar(planned_compute, planned_exposed, planned);
  html +=
      "<p class=legend><span><i style=\"background:var(--compute)\"></i>compute</span><span><i "
      "style=\"background:var(--exposed)\"></i>exposed communication</span><span><i "
      "style=\"background:var(--other)\"></i>other</span></p>";
  const auto row = [&](const char* name, double plan, double measured) {
    return Row{name, known(plan, seconds_text), known(measured, seconds_text),
               difference(plan, measured)};
  };
  html += table({"per step", "plan", "measured", "off by"},
                {row("compute", planned_compute, compute),
                 row("exposed communication", planned_exposed, exposed),
                 row("other", rest(planned, planned_compute + planned_exposed),
                     rest(seconds, compute + exposed)),
                 row("whole step", planned, seconds)});
  return section("Time by kind", html);
}

/// A figure of the level called `level` in a list of LEVELS.
double of_level(const Json::Array& levels, const std::string& level, const char* member) {
  for (const Json& entry : levels)
    if (word(entry, {"level"}) == level) return number(entry, {member});
  return kUnknown;
}

std::string bytes_by_level(const PageInput& input) {
  const Json::Array& planned = elements(find(input.plan, {"bytes_per_step"}));
  const Json::Array& counted = elements(find(input.train, {"bytes_per_step", "runtime"}));
  const Json::Array& measured =
      counted.empty() ? elements(find(input.summary, {"bytes_per_step"})) : counted;
  const Json::Array& named = planned.empty() ? measured : planned;
  if (named.empty()) return section("Bytes by level", "<p class=dim>None known.</p>");
  std::vector<Row> rows;
  for (const Json& entry : named) {
    const std::string level = word(entry, {"level"});
    for (const auto& [member, title] :
         {std::pair("payload_bytes", "payload"), std::pair("metadata_bytes", "metadata")}) {
      const double plan = of_level(planned, level, member),
                   found = of_level(measured, level, member);
      rows.push_back({fmt::format("{}, {}", escaped(level), title), bytes_cell(plan),
                      bytes_cell(found), difference(plan, found)});
    }
  }
  std::string html = table({"per step, all ranks", "plan", "measured", "off by"}, rows);
  return section("Bytes by level", html);
}

std::string traffic(const Json& train) {
  const Json::Array& rows = elements(find(train, {"traffic"}));
  if (rows.empty()) return "";
  std::vector<Row> cells;
  for (const Json& row : rows)
    cells.push_back({escaped(word(row, {"operation"})), escaped(word(row, {"level"})),
                     escaped(word(row, {"codec"})), bytes_cell(number(row, {"payload_bytes"})),
                     bytes_cell(number(row, {"metadata_bytes"}))});
  return section("Traffic by operation",
                 table({"operation, per step", "level", "codec", "payload", "metadata"}, cells));
}

/// What a layer sends per element, as a share of the most of all layers, beside the uniform
/// setting.
std::string setting_bar(double sent, double uniform, double most) {
  const auto part = [&](double bytes, const char* colour) {
    return fmt::format("<i style=\"width:{:.2f}%;background:var(--{})\"></i>",
                       100 * std::max(bytes, 0.0) / most, colour);
  };
  return "<div class=bar style=\"min-width:140px\">" + part(std::min(sent, uniform), "compute") +
         part(uniform - sent, "plan") + part(sent - uniform, "exposed") + "</div>";
}

/// The picture of a compressed all-reduce whose settings are chosen.
std::string layer_settings(const Json& train) {
  const Json::Array& layers = elements(find(train, {"compression", "layers"}));
  if (layers.empty() || word(train, {"compression", "adapt"}) == "none") return "";
  double most = 0, sent = 0, uniform = 0;
  const auto per_element = [](const Json& layer, const char* member) {
    return number(layer, {member}) / number(layer, {"elements"});
  };
  for (const Json& layer : layers) {
    most = std::max(
        {most, per_element(layer, "bytes_per_step"), per_element(layer, "uniform_bytes_per_step")});
    sent += number(layer, {"bytes_per_step"});
    uniform += number(layer, {"uniform_bytes_per_step"});
  }
  std::vector<Row> rows;
  for (const Json& layer : layers)
    rows.push_back({escaped(word(layer, {"name"})), escaped(word(layer, {"setting"})),
                    count_text(number(layer, {"elements"})),
                    bytes_cell(number(layer, {"bytes_per_step"})),
                    setting_bar(per_element(layer, "bytes_per_step"),
                                per_element(layer, "uniform_bytes_per_step"), most)});
  std::string html =
      fmt::format("<p>{} per step instead of {} with {} everywhere.</p>", bytes_cell(sent),
                  bytes_cell(uniform), escaped(word(train, {"compression", "codec"})));
  html += table({"layer", "setting", "elements", "bytes per step", "bytes per element"}, rows);
  html +=
      "<p class=legend><span><i style=\"background:var(--compute)\"></i>sent</span><span><i "
      "style=\"background:var(--plan)\"></i>saved</span><span><i "
      "style=\"background:var(--exposed)\"></i>more than the uniform setting</span></p>";
  return section("Settings per layer", html);
}

double largest(const Json* values) {
  double most = kUnknown;
  for (const Json& value : elements(values))
    if (value.is_number() && !(most >= value.as_number())) most = value.as_number();
  return most;
}

std::string memory(const PageInput& input) {
  const double planned = number(input.plan, {"memory", "total"});
  double measured = largest(find(input.train, {"allocator_peak_bytes"}));
  if (!std::isfinite(measured)) measured = number(input.summary, {"peak_memory_bytes"});
  std::vector<Row> rows = {{"allocated, peak of a rank", bytes_cell(planned), bytes_cell(measured),
                            difference(planned, measured)}};
  for (const char* kind :
       {"weights", "secondary", "gradients", "optimizer", "activations", "buffers"}) {
    const double bytes = number(input.plan, {"memory", kind});
    if (bytes > 0) rows.push_back({fmt::format("of it {}", kind), bytes_cell(bytes), "", ""});
  }
  const double resident = number(input.train, {"peak_resident_bytes"});
  if (resident > 0)
    rows.push_back({"resident, sum of all processes", "", bytes_cell(resident), ""});
  return section("Memory", table({"", "plan", "measured", "off by"}, rows));
}

}  // namespace

std::string report_page(const PageInput& input) {
  const std::string name = escaped(word(input.summary, {"run_dir"}));
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width,initial-scale=1\"><title>{0}</title><style>{1}</style></head>\n"
      "<body><main><h1>{0}</h1><p class=dim>{2}</p>\n",
      name, kStyle, head_line(input));
  html += key_figures(input.summary) + verdict(input) + figures(input);
  if (!input.plan_figure.empty()) html += section("Plan of a batch", figure(input.plan_figure));
  html += "<div class=grid>" + time_by_kind(input) + bytes_by_level(input) + memory(input) +
          traffic(input.train) + "</div>\n" + layer_settings(input.train);
  if (!input.run_toml.empty())
    html += fmt::format(
        "<section><details><summary>Settings "
        "(run.toml)</summary><pre>{}</pre></details></section>\n",
        escaped(input.run_toml));
  return html + "</main></body></html>\n";
}

}  // namespace strait::report
