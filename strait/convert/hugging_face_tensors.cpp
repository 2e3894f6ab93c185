#include "strait/convert/hugging_face_tensors.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/json.h"

namespace strait::convert {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::TensorInfo;

constexpr const char* kIndex = "model.safetensors.index.json";

float widened(uint16_t bits, Dtype dtype) {
  if (dtype == Dtype::kBfloat16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float tiny = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -tiny : tiny;
}

}  // namespace

void refuse_file(const std::string& path, const std::string& what) {
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("{}: {}", path, what), place);
}

ForeignTensors::ForeignTensors(const std::string& folder, std::string prefix)
    : folder_(folder), prefix_(std::move(prefix)) {
  if (path_exists(folder + "/" + kIndex)) {
    open_shards(folder + "/" + kIndex);
  } else {
    open(kWeightsFile);
  }
}

ForeignTensors::Found ForeignTensors::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, tensor] : tensors_) names.push_back(known);
  refuse_file(folder_,
              fmt::format("has no tensor {}{}", name,
                          names.empty() ? ", nor any other"
                                        : "; the nearest is " + nearest_choice(name, names)));
}

const SafetensorsFile& ForeignTensors::open(const std::string& name) {
  auto& file = files_[name];
  if (file != nullptr) return *file;
  if (name.find('/') != std::string::npos)
    refuse_file(folder_ + "/" + kIndex, fmt::format("\"{}\" is no file of the folder", name));
  file = std::make_unique<SafetensorsFile>(folder_ + "/" + name);
  for (const TensorInfo& tensor : file->tensors()) {
    const std::string_view full = tensor.name;
    const std::string plain(full.starts_with(prefix_) ? full.substr(prefix_.size()) : full);
    if (!tensors_.emplace(plain, Found{file.get(), &tensor}).second)
      refuse_file(file->path(), fmt::format("holds the tensor {} a second time", tensor.name));
  }
  return *file;
}

void ForeignTensors::open_shards(const std::string& index) {
  std::set<std::string> listed;
  const Json json = Json::parse(read_file(index), index);
  const Json* map = json.is_object() ? json.find("weight_map") : nullptr;
  if (map == nullptr) refuse_file(index, "has no \"weight_map\", the files of its tensors");
  if (!map->is_object() || map->size() == 0)
    refuse_file(index, fmt::format("weight_map is {}, not an object that names the file of each "
                                   "tensor",
                                   map->is_object()  ? "{}"
                                   : map->is_array() ? "a list"
                                                     : map->dump()));
  for (const auto& [name, file] : map->as_object()) {
    if (!file.is_string())
      refuse_file(index, fmt::format("weight_map.{} is {}, not the name of a file", name,
                                     file.dump().substr(0, 100)));
    open(file.as_string()).tensor(name);  // names the nearest when it is not there
    listed.insert(name);
  }
  for (const auto& [name, found] : tensors_)
    if (!listed.contains(found.tensor->name))
      refuse_file(found.file->path(), fmt::format("holds the tensor {}, which {} does not list",
                                                  found.tensor->name, kIndex));
}

std::vector<std::byte> read_tensor_as(const ForeignTensors::Found& found, Dtype dtype) {
  const TensorInfo& tensor = *found.tensor;
  std::vector<std::byte> stored(static_cast<size_t>(tensor.end - tensor.begin));
  found.file->read_tensor(tensor, stored);
  if (tensor.dtype == dtype) return stored;
  const bool half = tensor.dtype == Dtype::kFloat16 || tensor.dtype == Dtype::kBfloat16;
  if (!half || dtype != Dtype::kFloat32)
    refuse_file(found.file->path(), fmt::format("tensor {} is {}, but {} is wanted", tensor.name,
                                                dtype_name(tensor.dtype), dtype_name(dtype)));
  std::vector<std::byte> wide(2 * stored.size());
  for (size_t i = 0; i < stored.size() / 2; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, stored.data() + 2 * i, sizeof bits);
    const float value = widened(bits, tensor.dtype);
    std::memcpy(wide.data() + 4 * i, &value, sizeof value);
  }
  return wide;
}

}  // namespace strait::convert
