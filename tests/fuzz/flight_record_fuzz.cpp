// libFuzzer target: any bytes as a flight record. What is accepted is written and read back alike,
// and has a verdict or none.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "strait/base/errors.h"
#include "strait/base/json.h"
#include "strait/trace/flight_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  strait::trace::FlightFile file;
  try {
    file = strait::trace::parse_flight(strait::Json::parse(bytes, "fuzz"), "fuzz");
  } catch (const strait::UserError&) {
    return 0;  // refused, as bad input should be
  }
  const std::string written = strait::trace::to_json(file).dump();
  const auto again = strait::trace::parse_flight(strait::Json::parse(written, "again"), "again");
  if (strait::trace::to_json(again).dump() != written)
    throw std::logic_error("a flight record changes when it is written");
  strait::trace::verdict_json(strait::trace::judge_flight({file}), {file});
  return 0;
}
