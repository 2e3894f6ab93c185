#include "strait/train/parameter_hash.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "strait/checkpoint/hash.h"
#include "strait/strategy/compose/collect.h"
#include "strait/strategy/sharding/unit_values.h"

namespace strait::train {
namespace {

/// Hashes the parameters of a visit from the whole unit.
class HashExecutor : public runtime::Executor {
 public:
  HashExecutor(const std::vector<strategy::UnitVisit>& visits, const ModelShape& shape,
               int64_t element_bytes)
      : visits_(visits), shape_(shape), element_bytes_(element_bytes) {}

  void execute(const runtime::Instance& instance) override {
    const strategy::UnitVisit& visit = visits_[instance.micro_batch];
    const auto* unit = static_cast<const std::byte*>(instance.read(program::Role::kWeights));
    for (const std::string& name : visit.parameters) {
      const ParameterShape& parameter = shape_.units[visit.unit].parameter(name);
      hasher_.update(std::span(unit + parameter.offset * element_bytes_,
                               static_cast<size_t>(parameter.elements() * element_bytes_)));
    }
  }
  std::string hex() const { return hasher_.hex(); }

 private:
  const std::vector<strategy::UnitVisit>& visits_;
  const ModelShape& shape_;
  int64_t element_bytes_;
  checkpoint::Hasher128 hasher_;
};

}  // namespace

std::string parameter_hash(const strategy::Design& design, const runtime::Site& site) {
  const std::vector<strategy::UnitVisit> visits = strategy::visits_by_name(design.shape);
  const program::Program program = strategy::compose_collect(design.shape, design.placement,
                                                             design.cluster, design.dtype, visits);
  HashExecutor executor(visits, design.shape, dtype_bytes(strategy::types_of(design.dtype).state));
  runtime::Site own{site.world, site.state, site.pool, executor, nullptr, site.deadline_seconds};
  runtime::Interpreter interpreter(program, own);
  interpreter.run(0);
  Ledger discarded;  // not part of training
  interpreter.drain_ledger(discarded);
  return site.world.rank() == 0 ? executor.hex() : "";
}

}  // namespace strait::train
