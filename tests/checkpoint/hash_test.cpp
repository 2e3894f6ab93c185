#include "strait/checkpoint/files/hash.h"

#include <gtest/gtest.h>

#include <map>

#include "strait/base/errors.h"

namespace strait::checkpoint {
namespace {

// Digests that xxHash's own tools print for these inputs (`xxhsum -H2`).
TEST(Hash, EqualsPublishedDigests) { EXPECT_EQ(hash_hex(""), "99aa06d3014798d86001c324468d497f"); }

TEST(Hash, StreamedEqualsWholeForEveryCut) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += static_cast<char>(i * 7 + i / 256);
  const std::string whole = hash_hex(text);
  for (size_t cut = 0; cut <= text.size(); cut += 13) {
    Hasher128 hasher;
    hasher.update(std::string_view(text).substr(0, cut));
    hasher.update(std::string_view(text).substr(cut));
    EXPECT_EQ(hasher.hex(), whole) << cut;
  }
}

TEST(Hash, ParametersCountByNameNotByOrder) {
  const std::map<std::string, std::vector<float>> parameters = {
      {"b", {1, 2}}, {"a", {3}}, {"c", {}}};
  const auto bytes_of = [&](const std::string& name) {
    return std::as_bytes(std::span(parameters.at(name)));
  };
  const std::vector<float> in_order = {3, 1, 2};
  Hasher128 reference;
  reference.update(std::as_bytes(std::span(in_order)));
  EXPECT_EQ(parameter_hash({"b", "a", "c"}, bytes_of), reference.hex());
  EXPECT_EQ(parameter_hash({"a", "c", "b"}, bytes_of), reference.hex());
  EXPECT_NE(parameter_hash({"a", "c"}, bytes_of), reference.hex());
  EXPECT_THROW(parameter_hash({"a", "b", "a"}, bytes_of), InternalError);
}

}  // namespace
}  // namespace strait::checkpoint
