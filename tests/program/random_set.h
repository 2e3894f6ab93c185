// Random legal sets: kinds of steps that follow one another, with carries between them and indices
// that move on with the counters.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "strait/program/program_set.h"
#include "tests/program/random_program.h"

namespace strait::program {

/// Kinds that follow one another, and how a value is carried among them.
struct RoundShape {
  std::vector<std::string> kinds;
  std::vector<Rule> rules;
  std::vector<std::string> turns;                // purposes, in the order of a test
  std::vector<std::vector<Lifetime>> carriages;  // choices; [kind], kResident = does not touch it
};

inline std::vector<RoundShape> round_shapes() {
  using enum Lifetime;
  const std::optional<AgreedScalar> always;
  return {
      {{"steady"}, {{"step", "*", always, {"steady"}}}, {"step", "step", "step"}, {{kCarry}}},
      {{"launch", "take"},
       {{"step", "*", always, {"launch", "take"}}},
       {"step", "step"},
       {{kCarry, kCarry}, {kCarryOut, kCarryIn}}},
      {{"step", "border"},
       {{"step", "*", always, {"step"}}, {"border", "*", always, {"step", "border"}}},
       {"step", "border", "step", "border"},
       {{kCarry, kCarry}, {kResident, kCarry}}},
      {{"first", "steady"},
       {{"step", "", always, {"first"}}, {"step", "*", always, {"steady"}}},
       {"step", "step", "step"},
       {{kCarry, kCarry}, {kCarryOut, kCarry}}},
  };
}

struct RandomSet {
  ProgramSet programs;
  std::vector<std::string> turns;  // purposes to run, in this order
};

/// Draws a set over one world of groups, classes and values.
class RandomSetWriter {
 public:
  RandomSetWriter(uint64_t seed, int64_t ranks)
      : draws_(seed), world_(draws_, ranks), shape_(draws_.pick(round_shapes())) {
    const std::vector<Lifetime> stays(shape_.kinds.size(), Lifetime::kResident);
    for (size_t pair = 0; pair < world_.pairs.size(); ++pair) {
      carriages_.push_back(draws_.one_in(3) ? draws_.pick(shape_.carriages) : stays);
      carried_.push_back(carriages_.back() != stays);
    }
  }

  RandomSet write() {
    RandomSet set;
    set.turns = shape_.turns;
    set.programs.rules = shape_.rules;
    for (size_t kind = 0; kind < shape_.kinds.size(); ++kind)
      set.programs.kinds.push_back({shape_.kinds[kind], write_kind(kind)});
    return set;
  }

 private:
  std::vector<Program> write_kind(size_t kind) {
    RandomWorld world = world_;
    std::vector<int> leaves;
    for (size_t p = 0; p < world.pairs.size(); ++p) {
      const Lifetime lifetime = carriages_[p][kind];
      const int array = world.pairs[p].resident;
      if (lifetime == Lifetime::kCarryOut || lifetime == Lifetime::kCarry) leaves.push_back(array);
      // A kind that does not touch the carry has a value of its own in its place.
      const bool own = carried_[p] && lifetime == Lifetime::kResident;
      for (Program& program : world.classes) {
        program.step_kind = shape_.kinds[kind];
        program.arrays[array].lifetime = lifetime;
        if (own) program.arrays[array].name += ".own";
      }
    }
    RandomProgram script(draws_, world, rotations());
    script.launch(leaves);
    return script.take();
  }

  std::vector<Rotation> rotations() {
    std::vector<Rotation> rotations(world_.classes[0].arrays.size());
    for (Rotation& rotation : rotations) {
      if (!draws_.one_in(3)) continue;
      rotation.counter = draws_.one_in(4) ? kRoundCounter : kStepCounter;
      rotation.scale = draws_.one_in(2) ? 1 : RandomWorld::kCount - 1;  // prime to the count
    }
    return rotations;
  }

  Draws draws_;
  RandomWorld world_;
  RoundShape shape_;
  std::vector<std::vector<Lifetime>> carriages_;  // [pair][kind]
  std::vector<bool> carried_;                     // [pair]
};

/// The same for the same arguments.
inline RandomSet random_set(uint64_t seed, int64_t ranks) {
  return RandomSetWriter(seed, ranks).write();
}

}  // namespace strait::program
