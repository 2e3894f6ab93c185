#include "strait/trace/spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "strait/base/json.h"

namespace strait::trace {
namespace {

std::string metadata(const char* kind, int64_t process, size_t thread, const std::string& name) {
  return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})", kind,
                     process, thread, Json(name).dump());
}

std::string event(const Span& span, const std::string& name, int64_t rank, double origin) {
  constexpr double kMicroseconds = 1e6;
  return fmt::format(
      R"({{"name":{},"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"step":{}}}}})",
      Json(name).dump(), rank, span.stream, (span.time.begin - origin) * kMicroseconds,
      (span.time.end - span.time.begin) * kMicroseconds, span.step);
}

}  // namespace

int Recorder::name(const std::string& text) {
  const auto [found, fresh] = numbers_.try_emplace(text, static_cast<int>(names_.size()));
  if (fresh) names_.push_back(text);
  return found->second;
}

std::string chrome_trace(const std::vector<Timeline>& ranks) {
  double origin = std::numeric_limits<double>::infinity();
  for (const Timeline& timeline : ranks)
    for (const Span& span : timeline.spans->spans()) origin = std::min(origin, span.time.begin);
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  const auto append = [&](const std::string& line) {
    text += separator + line;
    separator = ",\n";
  };
  for (const auto& [rank, spans, streams] : ranks) {
    append(metadata("process_name", rank, 0, fmt::format("rank {}", rank)));
    for (size_t stream = 0; stream < streams.size(); ++stream)
      append(metadata("thread_name", rank, stream, streams[stream]));
    for (const Span& span : spans->spans())
      append(event(span, spans->names()[span.name], rank, origin));
  }
  return text + "\n]}\n";
}

}  // namespace strait::trace
