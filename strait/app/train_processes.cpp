// strait train under mpirun or srun: every process is a rank.
#include <fmt/format.h>

#include "strait/app/run_job.h"
#include "strait/app/signals.h"
#include "strait/base/errors.h"
#include "strait/checkpoint/session.h"
#include "strait/cli/report_envelope.h"
#include "strait/config/parse.h"

#ifdef STRAIT_MPI

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "strait/app/agreement.h"
#include "strait/app/local_rates.h"
#include "strait/comm/mpi/machine_cores.h"
#include "strait/comm/mpi/mpi_world.h"
#ifdef STRAIT_NCCL
#include "strait/comm/nccl/nccl_world.h"
#endif

namespace strait::app {
namespace {

void check_run(const Run& run, const cli::Command& command, const comm::Launch& launch,
               int64_t ranks) {
  ErrorPlace place;
  place.key = "runtime.backend";
  if (!launch.launched() && command.ranks && *command.ranks != ranks)
    throw UserError(fmt::format("--ranks {} with runtime.backend = \"{}\" and without a launcher: "
                                "start it with mpirun -n {}, or set runtime.backend to \"threads\"",
                                *command.ranks, run.runtime.backend, *command.ranks),
                    place);
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

/// Values of a CUDA device move through NCCL, and only they do.
void check_backend(const RuntimeOptions& runtime) {
  ErrorPlace place;
  place.key = "runtime.backend";
  const bool cuda = runtime.device == "cuda", nccl = runtime.backend == "nccl";
  if (nccl && !cuda)
    throw UserError(
        fmt::format("runtime.backend is \"nccl\", which moves values of CUDA devices, but "
                    "runtime.device is \"{}\"; the nearest valid choice is \"mpi\"",
                    runtime.device),
        place);
#ifndef STRAIT_NCCL
  if (cuda)
    throw UserError(
        "processes with runtime.device = \"cuda\" need NCCL, and this program was built "
        "without it; the nearest valid choice is \"threads\", without a launcher",
        place);
#endif
  if (cuda && runtime.backend == "mpi")
    throw UserError(
        "runtime.backend is \"mpi\", which moves plain memory, but runtime.device is "
        "\"cuda\"; the nearest valid choice is \"nccl\"",
        place);
}

/// Ranks before this one on the same host: the number of its device.
int64_t local_index(const comm::MpiSession& session) {
  const std::vector<std::string>& hosts = session.host_names();
  return std::count(hosts.begin(), hosts.begin() + session.rank(),
                    hosts[static_cast<size_t>(session.rank())]);
}

int first_signal(const std::vector<std::string>& received) {
  for (const std::string& number : received)
    if (number != "0") return std::stoi(number);
  return 0;
}

Surroundings agreed_surroundings(comm::MpiSession& session) {
  comm::MachineCores cores = comm::find_machine_cores(session);
  Surroundings found;
  found.usable_cores = std::move(cores.usable);
  found.cores_per_rank = cores.per_rank;
  found.cores_per_machine = cores.cores;
  found.device_index = local_index(session);
  return found;
}

comm::MpiOptions mpi_options(const train::Hooks& hooks, int64_t rank) {
  comm::MpiOptions options;
  if (hooks.before_transfer)
    options.at_turn = [before = hooks.before_transfer, rank](const comm::Call& call) {
      before(rank, call);
    };
  return options;
}

Json run_rank(comm::MpiSession& session, const Job& job, const std::atomic<int>& signal,
              cli::Output& output, train::Hooks own_hooks) {
  const std::string token = session.exchange(checkpoint::make_session_token()).front();
  const train::Hooks given = own_hooks;
  comm::World& world = session.world(job.design.cluster, mpi_options(given, session.rank()));
  const auto gather = [&](const std::string& text) {
    return session.exchange(text, "gather the figures of the run");
  };
#ifdef STRAIT_NCCL
  std::optional<comm::NcclWorld> values;
  if (job.device) values.emplace(world, job.design.cluster, *job.device);
  comm::World& used = values ? static_cast<comm::World&>(*values) : world;
#else
  comm::World& used = world;
#endif
  DumpSignals dumps;
  own_hooks.on_request = [&](const auto& dump) {
    dumps.set(dump);
    if (given.on_request) given.on_request(dump);
  };
  const auto run = [&](const train::Observer& observer, train::Outcome& outcome,
                       const train::Hooks& hooks) {
    try {
      train::train_rank(job, observer, signal, outcome,
                        {used, &session.window(), token, gather, hooks});
    } catch (...) {
      session.abandon();
      throw;
    }
    return first_signal(gather(std::to_string(signal.load())));
  };
  return run_job(job, output, std::move(own_hooks), run);
}

}  // namespace

Json train_on_processes(const cli::Command& command, const comm::Launch& launch,
                        cli::Output& output, train::Hooks hooks) {
  const StopSignals signals;
  comm::MpiSession session(
      [&](const std::exception_ptr& cause) { output.leave(cause, Json::object()); });
  const Surroundings surroundings = agreed_surroundings(session);
  Agreement agreement(session);
  std::optional<Job> job;
  agreement.all([&] {
    comm::check_launch(launch, session.size());
    session.require_network();
    Run run = load_run(command.path, command.sets);
    check_run(run, command, launch, session.size());
    if (session.rank() == 0) cli::require_folder_of(command.json, run.output.run_dir);
    check_backend(run.runtime);
    session.set_deadline(run.runtime.deadline_seconds);
    use_agreed_products(run, [&](const auto& action) { return agreement.on_lead(action); });
    use_agreed_rates(
        run,
        {surroundings.cores_per_rank, static_cast<int64_t>(surroundings.usable_cores.size()),
         surroundings.cores_per_machine},
        [&](const auto& action) { return agreement.on_lead(action); });
    job = make_job(
        run, session.size(), [&](const auto& action) { return agreement.on_lead(action); },
        surroundings);
  });
  std::ostringstream nowhere;
  cli::Output silent(nowhere, false);
  silent.set_leave([&](const auto& failure, const Json& body) { output.leave(failure, body); });
  return run_rank(session, *job, signals.received(), session.rank() == 0 ? output : silent,
                  std::move(hooks));
}

}  // namespace strait::app

#else

namespace strait::app {

Json train_on_processes(const cli::Command&, const comm::Launch& launch, cli::Output&,
                        train::Hooks) {
  throw UserError(
      launch.launched()
          ? "started by " + launch.launcher + ", but this program was built without MPI"
          : "runtime.backend is \"mpi\" or \"nccl\", but this program was built without MPI; the "
            "nearest is \"threads\"");
}

}  // namespace strait::app

#endif
