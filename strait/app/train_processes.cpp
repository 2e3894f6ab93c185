// strait train under mpirun or srun: every process is a rank.
#include <fmt/format.h>

#include "strait/app/run_job.h"
#include "strait/app/signals.h"
#include "strait/base/errors.h"
#include "strait/checkpoint/session.h"
#include "strait/config/parse.h"

#ifdef STRAIT_MPI

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "strait/app/agreement.h"
#include "strait/comm/mpi/mpi_world.h"

namespace strait::app {
namespace {

void check_run(const Run& run, const cli::Command& command, int64_t ranks) {
  ErrorPlace place;
  place.key = "runtime.backend";
  if (run.runtime.backend == "threads" && ranks > 1)
    throw UserError(fmt::format("runtime.backend is \"threads\", but a launcher has started {} "
                                "processes; set it to \"mpi\" or \"auto\"",
                                ranks),
                    place);
  if (command.ranks && *command.ranks != ranks)
    throw UserError(
        fmt::format("--ranks {} under a launcher that has started {} processes; leave it "
                    "out, or start {} of them",
                    *command.ranks, ranks, *command.ranks));
}

int first_signal(const std::vector<std::string>& received) {
  for (const std::string& number : received)
    if (number != "0") return std::stoi(number);
  return 0;
}

Json run_rank(comm::MpiSession& session, const train::Job& job, const std::atomic<int>& signal,
              cli::Output& output) {
  const std::string token = session.exchange(checkpoint::make_session_token()).front();
  comm::World& world = session.world(job.design.cluster);
  const auto gather = [&](const std::string& text) { return session.exchange(text); };
  const train::ProcessRank rank{world, &session.window(), token, gather};
  DumpSignals dumps;
  train::Hooks own_hooks;
  own_hooks.on_request = [&](const auto& dump) { dumps.set(dump); };
  const auto run = [&](const train::Observer& observer, train::Outcome& outcome,
                       const train::Hooks& hooks) {
    try {
      train::train_rank(job, observer, signal, outcome, rank, hooks);
    } catch (...) {
      session.abandon();
      throw;
    }
    return first_signal(session.exchange(std::to_string(signal.load())));
  };
  return run_job(job, output, std::move(own_hooks), run);
}

}  // namespace

Json train_on_processes(const cli::Command& command, const comm::Launch& launch,
                        cli::Output& output) {
  const StopSignals signals;
  comm::MpiSession session;
  Agreement agreement(session);
  std::optional<train::Job> job;
  agreement.all([&] {
    comm::check_launch(launch, session.size());
    session.require_network();
    const Run run = load_run(command.path, command.sets);
    check_run(run, command, session.size());
    job = train::make_job(run, session.size(),
                          [&](const auto& action) { return agreement.on_lead(action); });
  });
  std::ostringstream nowhere;
  cli::Output silent(nowhere, false);
  silent.set_leave([&](const auto& failure, const Json& body) { output.leave(failure, body); });
  return run_rank(session, *job, signals.received(), session.rank() == 0 ? output : silent);
}

}  // namespace strait::app

#else

namespace strait::app {

Json train_on_processes(const cli::Command&, const comm::Launch& launch, cli::Output&) {
  throw UserError(
      launch.launched()
          ? "started by " + launch.launcher + ", but this program was built without MPI"
          : "runtime.backend is \"mpi\", but this program was built without MPI; the nearest "
            "is \"threads\"");
}

}  // namespace strait::app

#endif
