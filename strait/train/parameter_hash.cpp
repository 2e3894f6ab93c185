#include "strait/train/parameter_hash.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "strait/checkpoint/hash.h"
#include "strait/strategy/compose/collect.h"
#include "strait/strategy/sharding/unit_values.h"
#include "strait/tensor/device.h"

namespace strait::train {
namespace {

/// Hashes the parameters of a visit from the whole unit.
class VisitHash {
 public:
  VisitHash(const std::vector<strategy::UnitVisit>& visits, const ModelShape& shape,
            int64_t element_bytes, tensor::Device* device)
      : visits_(visits), shape_(shape), element_bytes_(element_bytes), device_(device) {}

  void visit(const runtime::Instance& instance) {
    const strategy::UnitVisit& visit =
        visits_[static_cast<size_t>(instance.index(strategy::kVisitNumber))];
    const auto* unit = static_cast<const std::byte*>(instance.read(strategy::kVisited));
    for (const std::string& name : visit.parameters) {
      const ParameterShape& parameter = shape_.units[visit.unit].parameter(name);
      const size_t bytes = static_cast<size_t>(parameter.elements() * element_bytes_);
      const std::byte* values = unit + parameter.offset * element_bytes_;
      if (device_) {
        image_.resize(bytes);
        tensor::copy_bytes(device_, values, image_.data(), static_cast<int64_t>(bytes));
        values = image_.data();
      }
      hasher_.update(std::span(values, bytes));
    }
  }
  std::string hex() const { return hasher_.hex(); }

 private:
  const std::vector<strategy::UnitVisit>& visits_;
  const ModelShape& shape_;
  int64_t element_bytes_;
  tensor::Device* device_;
  std::vector<std::byte> image_;  // of a parameter that lives on the device
  checkpoint::Hasher128 hasher_;
};

}  // namespace

std::string parameter_hash(const strategy::Design& design, const runtime::Site& site) {
  const std::vector<strategy::UnitVisit> visits = strategy::visits_by_name(design.shape);
  const program::Program program = strategy::compose_collect(design.shape, design.placement,
                                                             design.cluster, design.dtype, visits);
  VisitHash hash(visits, design.shape, dtype_bytes(strategy::types_of(design.dtype).state),
                 site.pool.device());
  runtime::Executors executors;
  executors.add(strategy::kVisit, runtime::Execute([&hash](const runtime::Instance& instance) {
                  hash.visit(instance);
                }));
  const runtime::Site own{site.world, site.state, site.pool,
                          executors,  nullptr,    site.deadline_seconds};
  runtime::Interpreter interpreter(program, own);
  interpreter.run(0);
  Ledger discarded;  // not part of training
  interpreter.drain_ledger(discarded);
  return site.world.rank() == 0 ? hash.hex() : "";
}

}  // namespace strait::train
