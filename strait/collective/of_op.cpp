#include "strait/collective/of_op.h"

#include "strait/base/errors.h"

namespace strait::collective {

using program::OpKind;

Operation operation_of(program::OpKind kind) {
  switch (kind) {
    case OpKind::kAllGather:
      return Operation::kAllGather;
    case OpKind::kReduceScatter:
      return Operation::kReduceScatter;
    case OpKind::kAllReduce:
      return Operation::kAllReduce;
    case OpKind::kAllToAll:
      return Operation::kAllToAll;
    case OpKind::kShift:
      return Operation::kShift;
    case OpKind::kBroadcast:
      return Operation::kBroadcast;
    case OpKind::kSend:
      return Operation::kSend;
    case OpKind::kReceive:
      return Operation::kReceive;
    case OpKind::kBarrier:
      return Operation::kBarrier;
    default:
      throw InternalError("an op that is no communication has no collective operation");
  }
}

}  // namespace strait::collective
