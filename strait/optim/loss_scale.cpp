#include "strait/optim/loss_scale.h"

#include <algorithm>

namespace strait::optim {

bool LossScale::advance(bool finite) {
  if (finite) {
    if (++good_steps_ < options_.growth_every) return true;
    value_ *= options_.growth;
    good_steps_ = 0;
    return true;
  }
  good_steps_ = 0;
  const double before = value_;
  value_ = std::max(options_.smallest, value_ * options_.backoff);
  return value_ < before;
}

}  // namespace strait::optim
