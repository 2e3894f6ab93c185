#include "strait/trace/spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "strait/base/json.h"

namespace strait::trace {
namespace {

std::string metadata(const char* kind, size_t process, size_t thread, const std::string& name) {
  return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})", kind,
                     process, thread, Json(name).dump());
}

std::string event(const Span& span, const std::string& name, size_t rank, double origin) {
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

std::string chrome_trace(const std::vector<const Recorder*>& ranks,
                         const std::vector<std::string>& streams,
                         const std::vector<int64_t>& numbers) {
  double origin = std::numeric_limits<double>::infinity();
  for (const Recorder* recorder : ranks)
    for (const Span& span : recorder->spans()) origin = std::min(origin, span.time.begin);
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  const auto append = [&](const std::string& line) {
    text += separator + line;
    separator = ",\n";
  };
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    append(metadata(
        "process_name", rank, 0,
        fmt::format("rank {}", numbers.empty() ? static_cast<int64_t>(rank) : numbers[rank])));
    for (size_t stream = 0; stream < streams.size(); ++stream)
      append(metadata("thread_name", rank, stream, streams[stream]));
    for (const Span& span : ranks[rank]->spans())
      append(event(span, ranks[rank]->names()[span.name], rank, origin));
  }
  return text + "\n]}\n";
}

}  // namespace strait::trace
