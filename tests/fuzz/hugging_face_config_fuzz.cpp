// libFuzzer target: any bytes as the config.json of a Hugging Face folder.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/json.h"
#include "strait/convert/hugging_face_family.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strait;
  try {
    const Json config = Json::parse({reinterpret_cast<const char*>(data), size}, "config.json");
    std::vector<std::string> notes;
    const std::string family = convert::family_of_config(config, "config.json", notes);
    convert::foreign_family(family).shape(config, "config.json", notes);
  } catch (const UserError&) {
    // refused, as bad input should be
  }
  return 0;
}
