// The tensors of a Hugging Face folder: model.safetensors, or shards listed by
// model.safetensors.index.json.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/checkpoint/files/safetensors.h"

namespace strait::convert {

inline constexpr const char* kWeightsFile = "model.safetensors";

/// Throws UserError about a file.
[[noreturn]] void refuse_file(const std::string& path, const std::string& what);

/// By name without the family's prefix. UserError naming file and tensor: a tensor twice, listed
/// and not there, there and not listed, a shard outside the folder; and as SafetensorsFile.
class ForeignTensors {
 public:
  ForeignTensors(const std::string& folder, std::string prefix);
  struct Found {
    const checkpoint::SafetensorsFile* file = nullptr;
    const checkpoint::TensorInfo* tensor = nullptr;
  };
  const std::map<std::string, Found>& all() const { return tensors_; }
  /// UserError naming the nearest.
  Found at(const std::string& name) const;

 private:
  const checkpoint::SafetensorsFile& open(const std::string& name);
  void open_shards(const std::string& index);

  std::string folder_, prefix_;
  std::map<std::string, std::unique_ptr<checkpoint::SafetensorsFile>> files_;
  std::map<std::string, Found> tensors_;
};

/// The values in `dtype`; 16-bit floats are widened to fp32, without loss. UserError for other
/// types.
std::vector<std::byte> read_tensor_as(const ForeignTensors::Found& found, Dtype dtype);

}  // namespace strait::convert
