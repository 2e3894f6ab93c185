// Which ranks behave alike: the verifier and the simulator follow one rank of each colour.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/program/exchange.h"

namespace strait::program {

/// Colours of ranks: ranks of one colour run the same program among equally coloured ranks. Classes
/// are the first colours; ranks whose groups are coloured differently part until nothing parts any
/// more. Position in a group counts only where messages are sent. Cost: O(ranks * channels) per
/// round; nothing when one class sends no messages.
class Colouring {
 public:
  /// `exchange` must outlive this object, and its classes must have passed check_messages.
  explicit Colouring(const Exchange& exchange);

  int64_t colours() const { return static_cast<int64_t>(representative_.size()); }
  int64_t colour(int64_t rank) const { return colour_[rank]; }
  /// The lowest rank of a colour, and how many ranks have it.
  int64_t rank(int64_t colour) const { return representative_[colour]; }
  int64_t count(int64_t colour) const { return count_[colour]; }

  /// Colours of the members of the group of `rank`: in order where messages are sent, else as a
  /// set.
  std::vector<int64_t> surroundings(int channel, int64_t rank) const;

 private:
  /// Colours that agreed so far part where `channel` shows them different surroundings.
  void refine(int channel);
  /// Numbers colours by their lowest ranks.
  void number_by_rank();

  const Exchange& exchange_;
  std::vector<int64_t> colour_;          // by rank
  std::vector<int64_t> representative_;  // by colour
  std::vector<int64_t> count_;           // by colour
};

/// Where transfers of several colours meet: a collective with all its ranks, a message with its
/// other side.
class Meetings {
 public:
  explicit Meetings(const Exchange& exchange, const Colouring& colouring);

  int64_t count() const { return static_cast<int64_t>(sides_.size()); }
  /// The meeting of the `number`-th transfer of a colour.
  int64_t at(int64_t colour, int64_t number) const { return meetings_[colour][number]; }
  /// Colours that meet there.
  int64_t sides(int64_t meeting) const { return sides_[meeting]; }

 private:
  using Known =
      std::map<std::vector<int64_t>, std::vector<int64_t>>;  // who meets -> meetings in order
  void place(const Colouring& colouring, int64_t colour, Known& known);
  void join(int64_t colour, const std::vector<int64_t>& numbers, std::vector<int64_t>& meetings);

  const Exchange& exchange_;
  std::vector<std::vector<int64_t>> meetings_;  // [colour][transfer]
  std::vector<int64_t> sides_;                  // [meeting]
};

}  // namespace strait::program
