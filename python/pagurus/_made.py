"""Made by generate.py from openapi.json; edit neither."""

from __future__ import annotations

from typing import Any, Mapping, NotRequired, Optional, Required, TypedDict, cast
from urllib.parse import quote


Abilities = TypedDict('Abilities', {
    'accelerator': NotRequired['str'],
    'checkpoint': NotRequired['bool'],
    'compress': NotRequired['bool'],
    'cpu': NotRequired['str'],
    'emulated': NotRequired['str'],
    'files': NotRequired['bool'],
    'lacks': NotRequired['str'],
    'live': Required['bool'],
    'model': NotRequired['str'],
    'no_checkpoint': NotRequired['str'],
    'no_files': NotRequired['str'],
    'no_post_copy': NotRequired['str'],
    'no_rounds': NotRequired['str'],
    'post_copy': Required['bool'],
    'preempt': NotRequired['bool'],
    'processor': NotRequired['str'],
    'trouble': NotRequired['str'],
    'version': NotRequired['str'],
    'vhost_net': NotRequired['bool'],
}, total=False)
Abilities.__doc__ = 'Abilities says what a driver can do on a host, so that placement need not call a driver.'

Answer = TypedDict('Answer', {
    'checkpoint': NotRequired['str'],
    'job': NotRequired['str'],
    'moves': NotRequired['list[str]'],
    'notes': NotRequired['list[str]'],
    'token': NotRequired['str'],
    'user': NotRequired['str'],
}, total=False)
Answer.__doc__ = 'Answer is the result of a request.'

AuditRecord = TypedDict('AuditRecord', {
    'at': Required['str'],
    'by': Required['Caller'],
    'did': Required['str'],
    'failed': NotRequired['str'],
    'from': NotRequired['str'],
    'on': NotRequired['str'],
    'refused': NotRequired['str'],
    'request': NotRequired['str'],
}, total=False)
AuditRecord.__doc__ = 'AuditRecord is something that somebody asked the controller for, and what came of it.'

BootIsolation = TypedDict('BootIsolation', {
    'asked': NotRequired['str'],
    'prepared': NotRequired['str'],
    'tickless': NotRequired['str'],
}, total=False)
BootIsolation.__doc__ = "BootIsolation says which CPUs a host's kernel isolates from its start."

Cache = TypedDict('Cache', {
    'clean_bytes': Required['int'],
    'empties': Required['bool'],
    'free_bytes': Required['int'],
    'hot_bytes': Required['int'],
    'used_bytes': Required['int'],
}, total=False)
Cache.__doc__ = 'Cache is what a guest reports of its memory.'

Calibration = TypedDict('Calibration', {
    'bytes': Required['Fitness'],
    'downtime': Required['Fitness'],
    'moves': Required['int'],
    'right': Required['int'],
    'total': Required['Fitness'],
    'verdicts': Required['int'],
}, total=False)
Calibration.__doc__ = 'Calibration compares past predictions with their outcomes.'

Call = TypedDict('Call', {
    'at': Required['str'],
    'class': Required['str'],
    'took_ns': Required['int'],
}, total=False)
Call.__doc__ = 'Call is one MPI call, or a run of successive polls that found nothing.'

Caller = TypedDict('Caller', {
    'admin': Required['bool'],
    'gid': Required['int'],
    'guest': NotRequired['str'],
    'host': NotRequired['str'],
    'uid': Required['int'],
    'user': NotRequired['str'],
}, total=False)
Caller.__doc__ = 'Caller is who made a request. The controller sets it from the connection.'

Calls = TypedDict('Calls', {
    'count': Required['int'],
    'took_ns': Required['int'],
}, total=False)
Calls.__doc__ = 'Calls is how many calls there were and how long they took.'

Cause = TypedDict('Cause', {
    'count': NotRequired['int'],
    'rank': NotRequired['int'],
    'took_ns': NotRequired['int'],
    'what': Required['str'],
}, total=False)
Cause.__doc__ = 'Cause is one event during a gap. Counts are for the whole guest and may begin up to a second before the gap.'

ChangeLimits = TypedDict('ChangeLimits', {
    'requests': Required['int'],
    'stored': Required['int'],
    'stored_in_all': Required['int'],
}, total=False)
ChangeLimits.__doc__ = "ChangeLimits bound what users have the controller change in a minute; 0 is no limit. Root on the controller's machine is not bound."

Changed = TypedDict('Changed', {
    'bytes': Required['int'],
    'within_ns': Required['int'],
}, total=False)
Changed.__doc__ = 'Changed is how much memory is in pages that changed within some time.'

ChangesMade = TypedDict('ChangesMade', {
    'bytes': Required['int'],
    'limits': Required['ChangeLimits'],
    'users': Required['list[UserChanges]'],
}, total=False)
ChangesMade.__doc__ = 'ChangesMade is what counts now of what users had the controller change: of the last minute at the most.'

Checkpoint = TypedDict('Checkpoint', {
    'asks': NotRequired['str'],
    'begun': Required['str'],
    'born': NotRequired['int'],
    'bytes': Required['int'],
    'cause': NotRequired['str'],
    'cut': NotRequired['str'],
    'ended': NotRequired['str'],
    'guests': Required['list[CheckpointPart]'],
    'id': Required['str'],
    'incarnation': NotRequired['int'],
    'job': Required['str'],
    'needs': NotRequired['list[Abilities]'],
    'new_bytes': Required['int'],
    'notice': NotRequired['str'],
    'phase': Required['str'],
    'pinned': NotRequired['bool'],
    'request': NotRequired['str'],
    'saved': NotRequired['str'],
    'share': NotRequired['str'],
    'since': Required['str'],
    'stop_ns': Required['int'],
    'subnet': Required['int'],
    'suspends': NotRequired['bool'],
    'vaults': Required['list[str]'],
    'was_kept': NotRequired['bool'],
    'why': Required['str'],
    'written': NotRequired['Written'],
}, total=False)
Checkpoint.__doc__ = 'Checkpoint is a checkpoint with what its parts come to.'

CheckpointLimits = TypedDict('CheckpointLimits', {
    'all': NotRequired['int'],
    'each': NotRequired['int'],
}, total=False)
CheckpointLimits.__doc__ = 'CheckpointLimits bound what all vaults keep of checkpoints, in bytes; 0 is no limit.'

CheckpointPart = TypedDict('CheckpointPart', {
    'answered': NotRequired['bool'],
    'attempt': NotRequired['int'],
    'bytes': NotRequired['int'],
    'gen': Required['int'],
    'guest': Required['str'],
    'host': Required['str'],
    'kind': Required['str'],
    'manifest': NotRequired['str'],
    'needs': NotRequired['int'],
    'new_bytes': NotRequired['int'],
    'shape': NotRequired['Shape'],
    'since': Required['str'],
    'stop_ns': NotRequired['int'],
    'vault': NotRequired['str'],
}, total=False)
CheckpointPart.__doc__ = 'CheckpointPart is one guest of a checkpoint.'

CheckpointPlan = TypedDict('CheckpointPlan', {
    'every_ns': NotRequired['int'],
    'keep': NotRequired['int'],
}, total=False)
CheckpointPlan.__doc__ = "CheckpointPlan says when a job's checkpoints are made by themselves."

CheckpointsKept = TypedDict('CheckpointsKept', {
    'bytes': Required['int'],
    'limits': Required['CheckpointLimits'],
    'users': Required['list[UserCheckpoints]'],
}, total=False)
CheckpointsKept.__doc__ = 'CheckpointsKept is what vaults keep of checkpoints.'

Core = TypedDict('Core', {
    'cpus': Required['list[int]'],
    'socket': Required['int'],
}, total=False)
Core.__doc__ = 'Core is a core with its hardware threads.'

Credential = TypedDict('Credential', {
    'address': NotRequired['str'],
    'joined': Required['str'],
    'key': Required['str'],
    'machine': Required['str'],
    'site': NotRequired['str'],
}, total=False)
Credential.__doc__ = "Credential is a host's proof of who it is. The zero value is that of a host whose agent uses the controller's UNIX socket."

Device = TypedDict('Device', {
    'address': Required['str'],
    'driver': NotRequired['str'],
    'for_net': NotRequired['bool'],
    'functions': NotRequired['int'],
    'group': NotRequired['str'],
    'guest': NotRequired['str'],
    'id': Required['str'],
    'interface': NotRequired['str'],
    'kind': Required['str'],
    'most': NotRequired['int'],
    'of': NotRequired['str'],
    'trouble': NotRequired['str'],
}, total=False)
Device.__doc__ = 'Device is a PCI function of a host that could be given to one guest alone.'

Directory = TypedDict('Directory', {
    'path': Required['str'],
    'read_only': NotRequired['bool'],
    'source': NotRequired['str'],
}, total=False)
Directory.__doc__ = 'Directory is a directory that guests see at the same path.'

EndNotice = TypedDict('EndNotice', {
    'at': Required['str'],
    'guess': NotRequired['bool'],
    'id': Required['str'],
    'kind': Required['str'],
    'says': Required['str'],
    'since': NotRequired['str'],
}, total=False)
EndNotice.__doc__ = 'EndNotice says that a host goes away.'

EndNotices = TypedDict('EndNotices', {
    'blind': NotRequired['list[str]'],
    'pending': NotRequired['list[EndNotice]'],
    'said_at': NotRequired['str'],
    'watched': NotRequired['list[str]'],
}, total=False)
EndNotices.__doc__ = 'EndNotices is what an agent says about notices.'

Ending = TypedDict('Ending', {
    'at': Required['str'],
    'cause': Required['str'],
    'grace_ns': Required['int'],
}, total=False)
Ending.__doc__ = 'Ending is the grace of a job whose program was told to end.'

Entered = TypedDict('Entered', {
    'at': Required['str'],
    'phase': Required['str'],
}, total=False)
Entered.__doc__ = "Entered says when a phase was entered, controller's clock."

Exit = TypedDict('Exit', {
    'code': Required['int'],
    'signal': NotRequired['str'],
}, total=False)
Exit.__doc__ = 'Exit is how a program ended.'

Explanation = TypedDict('Explanation', {
    'lines': Required['list[str]'],
}, total=False)
Explanation.__doc__ = 'Explanation says why something is as it is, in sentences for people, one per line.'

Facts = TypedDict('Facts', {
    'abilities': NotRequired['dict[str, Abilities]'],
    'address': NotRequired['str'],
    'boot': NotRequired['str'],
    'boots': NotRequired['BootIsolation'],
    'capacity': Required['Resources'],
    'connected': Required['bool'],
    'copies': NotRequired['dict[str, Progress]'],
    'cpu_limit': NotRequired['float'],
    'devices': NotRequired['list[Device]'],
    'from': NotRequired['str'],
    'guests': NotRequired['dict[str, GuestFacts]'],
    'health': NotRequired['Health'],
    'internet': NotRequired['Outlet'],
    'isolation': NotRequired['Isolation'],
    'lease': NotRequired['Lease'],
    'load_cpus': Required['float'],
    'machine': NotRequired['str'],
    'memory_in_use_bytes': NotRequired['int'],
    'notices': NotRequired['EndNotices'],
    'owner': NotRequired['Owner'],
    'power': NotRequired['Power'],
    'protocol': NotRequired['int'],
    'seen_at': Required['str'],
    'shared': NotRequired['list[Directory]'],
    'site': NotRequired['str'],
    'speed': NotRequired['Speed'],
    'topology': NotRequired['Topology'],
    'troubles': NotRequired['list[str]'],
    'vault': NotRequired['VaultFacts'],
    'version': NotRequired['str'],
    'wireguard': NotRequired['WireGuardFacts'],
}, total=False)
Facts.__doc__ = "Facts is what an agent reports about its host, about once a second. It is kept in memory only: after a controller's restart it is empty until the agent connects."

Fitness = TypedDict('Fitness', {
    'bias': Required['float'],
    'coverage': Required['float'],
    'median_error': Required['float'],
}, total=False)
Fitness.__doc__ = 'Fitness is how well one quantity was predicted.'

Forecast = TypedDict('Forecast', {
    'at': Required['str'],
    'converges': Required['bool'],
    'downtime_ns': Required['RangeDuration'],
    'migrations': Required['list[Foreseen]'],
    'notes': NotRequired['list[str]'],
    'sent_bytes': Required['Rangeint64'],
    'total_ns': Required['RangeDuration'],
    'unmarked': NotRequired['Price'],
}, total=False)
Forecast.__doc__ = 'Forecast is what a request would do if it were made now.'

Foreseen = TypedDict('Foreseen', {
    'from': Required['str'],
    'guest': Required['str'],
    'job': Required['str'],
    'prediction': Required['Prediction'],
    'to': Required['str'],
}, total=False)
Foreseen.__doc__ = 'Foreseen is one migration that a request would start.'

Gap = TypedDict('Gap', {
    'at': Required['str'],
    'call': NotRequired['str'],
    'in_mpi': Required['bool'],
    'open': NotRequired['bool'],
    'rank': Required['int'],
    'took_ns': Required['int'],
    'why': NotRequired['list[Cause]'],
}, total=False)
Gap.__doc__ = 'Gap is a time in which a rank made no progress: inside an MPI call, or between two.'

Growth = TypedDict('Growth', {
    'asks': NotRequired['str'],
    'at': Required['str'],
    'cause': NotRequired['str'],
    'count': Required['int'],
    'ended': NotRequired['str'],
    'first': NotRequired['int'],
    'request': Required['str'],
    'state': Required['str'],
    'until': Required['str'],
}, total=False)
Growth.__doc__ = "Growth is one call of a job's program for more guests of its job, and what came of it."

GrowthUsed = TypedDict('GrowthUsed', {
    'each': NotRequired['int'],
    'guests': Required['int'],
    'users': Required['list[UserGrowth]'],
}, total=False)
GrowthUsed.__doc__ = 'GrowthUsed is by how many guests jobs have grown: those that they have, that start, and that programs wait for.'

Guest = TypedDict('Guest', {
    'aborts': NotRequired['int'],
    'address': Required['str'],
    'attempt': Required['int'],
    'born': NotRequired['int'],
    'cause': NotRequired['str'],
    'cpu': NotRequired['str'],
    'facts': NotRequired['GuestFacts'],
    'from': NotRequired['str'],
    'gen': Required['int'],
    'home': Required['str'],
    'host_fault': NotRequired['bool'],
    'id': Required['str'],
    'image': Required['str'],
    'index': Required['int'],
    'job': Required['str'],
    'kind': Required['str'],
    'migration': NotRequired['str'],
    'need': Required['Resources'],
    'reason': NotRequired['str'],
    'remains': NotRequired['Remains'],
    'retry_at': Required['str'],
    'shape': NotRequired['Shape'],
    'since': Required['str'],
    'state': Required['str'],
    'suspended': NotRequired['bool'],
    'vault': NotRequired['str'],
}, total=False)
Guest.__doc__ = 'Guest is a guest with its address and its use of resources.'

GuestFacts = TypedDict('GuestFacts', {
    'cpu_time_ns': NotRequired['int'],
    'cpus': Required['float'],
    'gen': Required['int'],
    'huge_bytes': NotRequired['int'],
    'layout': NotRequired['Layout'],
    'obstacles': NotRequired['list[str]'],
    'profile': NotRequired['Profile'],
    'reclaimed_bytes': NotRequired['int'],
    'resident_bytes': Required['int'],
    'run': Required['str'],
    'said': NotRequired['Said'],
    'seen': NotRequired['Topology'],
    'slice': NotRequired['TimeSlice'],
    'standby': NotRequired['str'],
    'started_at': Required['str'],
    'suspended': NotRequired['bool'],
}, total=False)
GuestFacts.__doc__ = 'GuestFacts is what an agent measures of one guest.'

GuestKind = TypedDict('GuestKind', {
    'accelerator': NotRequired['str'],
    'can': Required['list[KindAbility]'],
    'hosts': Required['list[str]'],
    'kind': Required['str'],
}, total=False)
GuestKind.__doc__ = 'GuestKind is a kind of guest, as some hosts run it: with one accelerator, if there are several.'

Head = TypedDict('Head', {
    'address': NotRequired['str'],
    'joining': NotRequired['bool'],
    'leads': NotRequired['bool'],
    'name': Required['str'],
    'peer': NotRequired['str'],
    'trouble': NotRequired['str'],
    'up': Required['bool'],
}, total=False)
Head.__doc__ = "Head is one of the cluster's controllers."

Health = TypedDict('Health', {
    'blind': NotRequired['list[str]'],
    'policy': Required['str'],
    'signs': NotRequired['list[Sign]'],
}, total=False)
Health.__doc__ = "Health is what an agent says of its host's health."

Host = TypedDict('Host', {
    'address': NotRequired['str'],
    'boot': NotRequired['str'],
    'booted': NotRequired['str'],
    'credential': NotRequired['Credential'],
    'empty_by': NotRequired['str'],
    'facts': Required['Facts'],
    'for_health': NotRequired['bool'],
    'for_notice': NotRequired['bool'],
    'for_owner': NotRequired['bool'],
    'free_memory_bytes': Required['int'],
    'gone': NotRequired['bool'],
    'guest_ids': Required['list[str]'],
    'id': Required['str'],
    'isolated_cpus': NotRequired['str'],
    'lease_ns': NotRequired['int'],
    'leave': NotRequired['Limits'],
    'losses': NotRequired['list[str]'],
    'lost': NotRequired['bool'],
    'number': NotRequired['int'],
    'policy': NotRequired['OwnerPolicy'],
    'protection': Required['str'],
    'signs_seen': NotRequired['str'],
    'silent_ns': NotRequired['int'],
    'since': Required['str'],
    'state': Required['str'],
    'waived': NotRequired['list[str]'],
    'wireguard': NotRequired['WireGuardEnd'],
    'wished': NotRequired['str'],
}, total=False)
Host.__doc__ = 'Host is a host and its guests.'

HostPath = TypedDict('HostPath', {
    'at': NotRequired['str'],
    'bytes_per_second': NotRequired['float'],
    'dead': NotRequired['bool'],
    'from': Required['str'],
    'kind': NotRequired['str'],
    'latency_ns': NotRequired['int'],
    'lost': NotRequired['float'],
    'needs_relay': NotRequired['bool'],
    'relay': NotRequired['str'],
    'silent': NotRequired['list[str]'],
    'since': NotRequired['str'],
    'to': Required['str'],
}, total=False)
HostPath.__doc__ = 'HostPath is a path with its hosts.'

Hours = TypedDict('Hours', {
    'from_ns': Required['int'],
    'to_ns': Required['int'],
}, total=False)
Hours.__doc__ = "Hours is a part of each day, by the host's own clock. It may cross midnight. The zero Hours is all day."

HugePages = TypedDict('HugePages', {
    'free': Required['int'],
    'size_bytes': Required['int'],
    'total': Required['int'],
}, total=False)
HugePages.__doc__ = 'HugePages are pages of one size reserved on a node.'

ImageLimits = TypedDict('ImageLimits', {
    'all': NotRequired['int'],
    'each': NotRequired['int'],
}, total=False)
ImageLimits.__doc__ = 'ImageLimits bound what a controller, or a host, keeps of images, in bytes; 0 is no limit.'

ImagesKept = TypedDict('ImagesKept', {
    'bytes': Required['int'],
    'limits': Required['ImageLimits'],
    'users': Required['list[UserImages]'],
}, total=False)
ImagesKept.__doc__ = 'ImagesKept is what the controller keeps of images.'

Isolation = TypedDict('Isolation', {
    'changed': NotRequired['int'],
    'cpus': NotRequired['str'],
    'left': NotRequired['list[str]'],
    'trouble': NotRequired['str'],
    'unable': NotRequired['str'],
    'wanted': NotRequired['str'],
}, total=False)
Isolation.__doc__ = "Isolation is the result of an IsolationRequest, from the host's agent."

IsolationRequest = TypedDict('IsolationRequest', {
    'cpus': NotRequired['str'],
    'on': NotRequired['bool'],
}, total=False)
IsolationRequest.__doc__ = 'IsolationRequest asks a host to isolate some of its CPUs.'

Job = TypedDict('Job', {
    'alone': NotRequired['bool'],
    'asks': NotRequired['str'],
    'attempt': Required['int'],
    'avoid': NotRequired['list[str]'],
    'born': NotRequired['int'],
    'cause': NotRequired['str'],
    'checkpoints': NotRequired['int'],
    'digest': Required['str'],
    'elsewhere': NotRequired['int'],
    'ended': Required['str'],
    'ending': NotRequired['Ending'],
    'exit': NotRequired['Exit'],
    'exited': NotRequired['str'],
    'few_cpus': NotRequired['bool'],
    'from': NotRequired['str'],
    'from_beginning': NotRequired['bool'],
    'gateway': NotRequired['str'],
    'grown': NotRequired['int'],
    'growths': NotRequired['list[Growth]'],
    'guest_ids': Required['list[str]'],
    'id': Required['str'],
    'incarnation': NotRequired['int'],
    'lost_with': NotRequired['str'],
    'mpi': Required['str'],
    'mtu': NotRequired['int'],
    'newest_checkpoint': NotRequired['str'],
    'next_checkpoint': NotRequired['str'],
    'reason': NotRequired['str'],
    'request': Required['str'],
    'requeue': NotRequired['bool'],
    'restart_from': NotRequired['str'],
    'restarted': NotRequired['int'],
    'result': NotRequired['str'],
    'share_host': Required['str'],
    'signals': NotRequired['list[SignalAsked]'],
    'since': Required['str'],
    'spec': Required['JobSpec'],
    'started': Required['str'],
    'state': Required['str'],
    'submitted': Required['str'],
    'subnet': Required['int'],
    'suspending': NotRequired['bool'],
    'traffic': NotRequired['list[Traffic]'],
    'unrestorable': NotRequired['list[str]'],
    'vlan': NotRequired['int'],
    'waits': NotRequired['str'],
}, total=False)
Job.__doc__ = 'Job is a job and the guests it has now.'

JobDetail = TypedDict('JobDetail', {
    'alone': NotRequired['bool'],
    'asks': NotRequired['str'],
    'attempt': Required['int'],
    'avoid': NotRequired['list[str]'],
    'born': NotRequired['int'],
    'cause': NotRequired['str'],
    'checkpoints': NotRequired['int'],
    'digest': Required['str'],
    'elsewhere': NotRequired['int'],
    'ended': Required['str'],
    'ending': NotRequired['Ending'],
    'exit': NotRequired['Exit'],
    'exited': NotRequired['str'],
    'few_cpus': NotRequired['bool'],
    'from': NotRequired['str'],
    'from_beginning': NotRequired['bool'],
    'gateway': NotRequired['str'],
    'grown': NotRequired['int'],
    'growths': NotRequired['list[Growth]'],
    'guest_ids': Required['list[str]'],
    'id': Required['str'],
    'incarnation': NotRequired['int'],
    'lost_with': NotRequired['str'],
    'moves': Required['list[Move]'],
    'mpi': Required['str'],
    'mtu': NotRequired['int'],
    'newest_checkpoint': NotRequired['str'],
    'next_checkpoint': NotRequired['str'],
    'reason': NotRequired['str'],
    'request': Required['str'],
    'requeue': NotRequired['bool'],
    'restart_from': NotRequired['str'],
    'restarted': NotRequired['int'],
    'result': NotRequired['str'],
    'share_host': Required['str'],
    'signals': NotRequired['list[SignalAsked]'],
    'since': Required['str'],
    'spec': Required['JobSpec'],
    'started': Required['str'],
    'state': Required['str'],
    'submitted': Required['str'],
    'subnet': Required['int'],
    'suspending': NotRequired['bool'],
    'traces': Required['list[Trace]'],
    'traffic': NotRequired['list[Traffic]'],
    'unrestorable': NotRequired['list[str]'],
    'vlan': NotRequired['int'],
    'waits': NotRequired['str'],
}, total=False)
JobDetail.__doc__ = 'JobDetail is a job with everything known of it.'

JobOutput = TypedDict('JobOutput', {
    'bytes': Required['int'],
    'ended': NotRequired['str'],
    'job': Required['str'],
}, total=False)
JobOutput.__doc__ = "JobOutput is one job's."

JobSpec = TypedDict('JobSpec', {
    'args': Required['list[str]'],
    'cap': NotRequired['float'],
    'checkpoint': NotRequired['CheckpointPlan'],
    'class': NotRequired['str'],
    'clones': NotRequired['bool'],
    'dir': Required['str'],
    'env': NotRequired['list[str]'],
    'export': Required['str'],
    'files': NotRequired['list[Directory]'],
    'gid': Required['int'],
    'groups': NotRequired['list[int]'],
    'grow': NotRequired['int'],
    'guests': Required['int'],
    'image': Required['str'],
    'kind': Required['str'],
    'links': NotRequired['list[Link]'],
    'machine': Required['str'],
    'need': Required['Resources'],
    'net': NotRequired['str'],
    'on': NotRequired['list[str]'],
    'ranks': Required['int'],
    'restarts': NotRequired['int'],
    'source': NotRequired['str'],
    'time_ns': NotRequired['int'],
    'trace': Required['bool'],
    'tune': NotRequired['Tune'],
    'uid': Required['int'],
}, total=False)
JobSpec.__doc__ = 'JobSpec describes a job that a user submits.'

JoinToken = TypedDict('JoinToken', {
    'access': NotRequired['bool'],
    'asks': NotRequired['str'],
    'expires': Required['str'],
    'hash': Required['str'],
    'id': Required['str'],
    'keys': NotRequired['list[str]'],
    'maker': NotRequired['str'],
    'request': NotRequired['str'],
    'role': Required['str'],
    'salt': NotRequired['str'],
    'same_machine': NotRequired['bool'],
    'since': Required['str'],
    'site': NotRequired['str'],
    'user': NotRequired['str'],
    'uses': Required['int'],
}, total=False)
JoinToken.__doc__ = 'JoinToken lets somebody into the cluster. The controller never stores its secret.'

JoinTokenAsked = TypedDict('JoinTokenAsked', {
    'access': NotRequired['bool'],
    'asks': NotRequired['str'],
    'expires': NotRequired['str'],
    'hash': NotRequired['str'],
    'id': NotRequired['str'],
    'keys': NotRequired['list[str]'],
    'maker': NotRequired['str'],
    'request': NotRequired['str'],
    'role': NotRequired['str'],
    'salt': NotRequired['str'],
    'same_machine': NotRequired['bool'],
    'since': NotRequired['str'],
    'site': NotRequired['str'],
    'user': NotRequired['str'],
    'uses': NotRequired['int'],
}, total=False)
JoinTokenAsked.__doc__ = 'JoinToken lets somebody into the cluster. The controller never stores its secret.'

KindAbility = TypedDict('KindAbility', {
    'hosts': Required['list[str]'],
    'name': Required['str'],
    'why': NotRequired['list[str]'],
}, total=False)
KindAbility.__doc__ = 'KindAbility is something that guests of a kind can do on some hosts.'

Layout = TypedDict('Layout', {
    'nodes': NotRequired['list[LayoutNode]'],
    'notes': NotRequired['list[str]'],
    'pins': NotRequired['list[list[int]]'],
    'rest': NotRequired['list[int]'],
}, total=False)
Layout.__doc__ = "Layout is where a guest's parts are on one host. Each host plans its own."

LayoutNode = TypedDict('LayoutNode', {
    'hosts': NotRequired['list[int]'],
    'memory_bytes': NotRequired['int'],
    'page_bytes': NotRequired['int'],
}, total=False)
LayoutNode.__doc__ = "LayoutNode is where a node's memory is."

Lease = TypedDict('Lease', {
    'asked': NotRequired['int'],
    'held_ns': NotRequired['int'],
    'length_ns': NotRequired['int'],
}, total=False)
Lease.__doc__ = "Lease is what an agent and the controller say to each other about a host's lease. While a host has one, something on it that needs no agent stops all of its guests when the lease ends, and each answer of the controller renews it. So after a lease and a margin of silence the controller knows that nothing runs there."

Limits = TypedDict('Limits', {
    'await_gang': NotRequired['bool'],
    'bytes_per_second': Required['int'],
    'compress': NotRequired['str'],
    'deadline_ns': NotRequired['int'],
    'downtime_ns': Required['int'],
    'lenient': NotRequired['bool'],
    'mode': NotRequired['str'],
    'page_cache': NotRequired['str'],
    'preempt': NotRequired['bool'],
    'rounds': Required['int'],
    'slow': NotRequired['bool'],
}, total=False)
Limits.__doc__ = 'Limits bounds a move and each of its copies. The zero value of a field means its default.'

Link = TypedDict('Link', {
    'path': Required['str'],
    'to': Required['str'],
}, total=False)
Link.__doc__ = 'Link is a symbolic link that guests have, too, so that a directory keeps the name its user has for it.'

Marks = TypedDict('Marks', {
    'at': NotRequired['str'],
    'cheap': NotRequired['bool'],
    'cheap_ago_ns': NotRequired['int'],
    'cheaps': NotRequired['int'],
    'for': NotRequired['str'],
    'held_bytes': NotRequired['int'],
    'not_for_ns': NotRequired['int'],
    'scratch_bytes': NotRequired['int'],
}, total=False)
Marks.__doc__ = "Marks are what a guest's programs say of when a move is cheap. The times count back or on from At, which each that passes marks on sets by its own clock."

Move = TypedDict('Move', {
    'asks': NotRequired['str'],
    'begun': Required['str'],
    'choice': NotRequired['str'],
    'drains': NotRequired['str'],
    'ended': Required['str'],
    'for_owner': NotRequired['str'],
    'id': Required['str'],
    'limits': NotRequired['Limits'],
    'migrations': Required['list[str]'],
    'parts': Required['list[Part]'],
    'request': NotRequired['str'],
    'skew': NotRequired['Skew'],
    'weighed': NotRequired['str'],
    'why': Required['str'],
}, total=False)
Move.__doc__ = 'Move is a move and its migrations.'

Node = TypedDict('Node', {
    'cores': NotRequired['list[Core]'],
    'distances': NotRequired['list[int]'],
    'huge': NotRequired['list[HugePages]'],
    'id': Required['int'],
    'memory_bytes': Required['int'],
}, total=False)
Node.__doc__ = 'Node is a NUMA node: memory and its nearest cores. Either may be missing.'

Offset = TypedDict('Offset', {
    'offset': Required['int'],
}, total=False)
Offset.__doc__ = 'Offset is the place in a stream at which to go on.'

Outlet = TypedDict('Outlet', {
    'allowed': Required['bool'],
    'jobs': NotRequired['int'],
    'trouble': NotRequired['str'],
}, total=False)
Outlet.__doc__ = 'Outlet is what a host reports about leading guests to the Internet.'

Output = TypedDict('Output', {
    'bytes': Required['int'],
    'changes': Required['ChangesMade'],
    'checkpoints': Required['CheckpointsKept'],
    'free_bytes': Required['int'],
    'growth': Required['GrowthUsed'],
    'images': Required['ImagesKept'],
    'limits': Required['OutputLimits'],
    'users': Required['list[UserOutput]'],
}, total=False)
Output.__doc__ = "Output is what the controller keeps of programs' output and input now."

OutputLimits = TypedDict('OutputLimits', {
    'all_bytes': Required['int'],
    'drop_oldest': Required['bool'],
    'each_bytes': Required['int'],
    'keep_ns': Required['int'],
}, total=False)
OutputLimits.__doc__ = "OutputLimits bound what the controller keeps of programs' output and input on its disk."

Owner = TypedDict('Owner', {
    'deaf': NotRequired['list[str]'],
    'entered': NotRequired['str'],
    'last_sign': NotRequired['str'],
    'load_cpus': Required['float'],
    'present': Required['bool'],
    'said_at': NotRequired['str'],
    'since': NotRequired['str'],
    'state': NotRequired['str'],
    'why': NotRequired['str'],
    'wish': NotRequired['OwnerWish'],
}, total=False)
Owner.__doc__ = "Owner is what a host's sensors report. If the host has no owner, they report only its load, and State is empty."

OwnerPolicy = TypedDict('OwnerPolicy', {
    'cap': NotRequired['float'],
    'claimed': NotRequired['bool'],
    'exclusive': NotRequired['list[str]'],
    'hours': NotRequired['Hours'],
    'idle_after_ns': NotRequired['int'],
    'nowhere': NotRequired['str'],
    'owned': NotRequired['bool'],
    'preset': NotRequired['str'],
    'vacate': NotRequired['str'],
}, total=False)
OwnerPolicy.__doc__ = "OwnerPolicy is what a host's owner has agreed to. A host with the zero OwnerPolicy has no owner."

OwnerPolicyAsked = TypedDict('OwnerPolicyAsked', {
    'cap': NotRequired['float'],
    'claimed': NotRequired['bool'],
    'exclusive': NotRequired['list[str]'],
    'hours': NotRequired['Hours'],
    'idle_after_ns': NotRequired['int'],
    'nowhere': NotRequired['str'],
    'owned': NotRequired['bool'],
    'preset': NotRequired['str'],
    'vacate': NotRequired['str'],
}, total=False)
OwnerPolicyAsked.__doc__ = "OwnerPolicy is what a host's owner has agreed to. A host with the zero OwnerPolicy has no owner."

OwnerWish = TypedDict('OwnerWish', {
    'id': Required['str'],
    'policy': Required['OwnerPolicy'],
}, total=False)
OwnerWish.__doc__ = 'OwnerWish is a policy that the owner has chosen at the machine, until the controller has it.'

Part = TypedDict('Part', {
    'at_mark': NotRequired['bool'],
    'attempt': Required['int'],
    'blackout_ns': NotRequired['int'],
    'born': NotRequired['int'],
    'cause': NotRequired['str'],
    'cost': Required['Progress'],
    'entered': Required['list[Entered]'],
    'from': Required['str'],
    'gen': Required['int'],
    'guest': Required['str'],
    'id': Required['str'],
    'job': Required['str'],
    'listen': NotRequired['str'],
    'marked': NotRequired['str'],
    'mode': Required['str'],
    'move': Required['str'],
    'orphan': NotRequired['bool'],
    'packed': NotRequired['bool'],
    'phase': Required['str'],
    'predicted': NotRequired['Prediction'],
    'preempts': NotRequired['bool'],
    'progress': Required['Progress'],
    'resumed': NotRequired['str'],
    'resuming': NotRequired['Resuming'],
    'rounds': NotRequired['list[Round]'],
    'since': Required['str'],
    'stall': NotRequired['Stall'],
    'switch_marked': NotRequired['str'],
    'to': Required['str'],
}, total=False)
Part.__doc__ = 'Part is one migration of a move with its progress.'

Path = TypedDict('Path', {
    'at': NotRequired['str'],
    'bytes_per_second': NotRequired['float'],
    'dead': NotRequired['bool'],
    'kind': NotRequired['str'],
    'latency_ns': NotRequired['int'],
    'lost': NotRequired['float'],
    'needs_relay': NotRequired['bool'],
    'relay': NotRequired['str'],
    'silent': NotRequired['list[str]'],
    'since': NotRequired['str'],
}, total=False)
Path.__doc__ = 'Path is how a host reaches a peer in another network, and how well.'

Policy = TypedDict('Policy', {
    'cpu_level': NotRequired['str'],
    'in_force': Required['bool'],
    'name': Required['str'],
    'placement': Required['str'],
    'says': Required['str'],
}, total=False)
Policy.__doc__ = 'Policy says what becomes of guests when owners return.'

Power = TypedDict('Power', {
    'joules': Required['float'],
    'trouble': NotRequired['str'],
    'worked_ns': Required['int'],
}, total=False)
Power.__doc__ = "Power is what a host's processors used, by their own counters (RAPL)."

Prediction = TypedDict('Prediction', {
    'at_mark': NotRequired['bool'],
    'basis': Required['str'],
    'converges': Required['bool'],
    'downtime_ns': Required['RangeDuration'],
    'for_owner': NotRequired['bool'],
    'help': NotRequired['str'],
    'kind': Required['str'],
    'limits': Required['Limits'],
    'link_bytes_per_second': Required['float'],
    'mapping_ns': NotRequired['int'],
    'profile': NotRequired['Profile'],
    'ready_ns': Required['int'],
    'rounds': Required['Rangeint'],
    'sent_bytes': Required['Rangeint64'],
    'share': Required['int'],
    'total_ns': Required['RangeDuration'],
    'why': NotRequired['str'],
}, total=False)
Prediction.__doc__ = "Prediction is a migration's expected cost when it begins. It is stored with the outcome to improve later predictions."

Price = TypedDict('Price', {
    'converges': Required['bool'],
    'downtime_ns': Required['RangeDuration'],
    'sent_bytes': Required['Rangeint64'],
    'total_ns': Required['RangeDuration'],
}, total=False)
Price.__doc__ = 'Price is what a move would cost.'

Profile = TypedDict('Profile', {
    'ancestors': NotRequired['int'],
    'at': Required['str'],
    'at_mark': NotRequired['list[Changed]'],
    'cache': NotRequired['Cache'],
    'changed': Required['list[Changed]'],
    'filled_bytes': Required['int'],
    'mappings': NotRequired['int'],
    'memory_bytes': Required['int'],
    'pages': Required['int'],
    'processes': NotRequired['int'],
    'resident_bytes': NotRequired['int'],
    'scratch_bytes': NotRequired['int'],
    'segments': NotRequired['int'],
    'took_ns': Required['int'],
}, total=False)
Profile.__doc__ = 'Profile is how a guest uses its memory, measured by its host in a few seconds.'

Progress = TypedDict('Progress', {
    'bytes_per_second': Required['float'],
    'copied_bytes': NotRequired['int'],
    'dirty_bytes_per_second': Required['float'],
    'downtime_ns': Required['int'],
    'dropped_bytes': NotRequired['int'],
    'elapsed_ns': Required['int'],
    'faults': NotRequired['int'],
    'post_copy_bytes': NotRequired['int'],
    'remaining_bytes': Required['int'],
    'rounds': Required['int'],
    'sent_bytes': Required['int'],
    'slowed_percent': NotRequired['int'],
    'suspended_at': Required['str'],
    'total_bytes': Required['int'],
}, total=False)
Progress.__doc__ = "Progress is a copy's state and cost so far, from the source's mechanism."

RangeDuration = TypedDict('RangeDuration', {
    'high': Required['int'],
    'low': Required['int'],
    'value': Required['int'],
}, total=False)

Rangeint = TypedDict('Rangeint', {
    'high': Required['int'],
    'low': Required['int'],
    'value': Required['int'],
}, total=False)

Rangeint64 = TypedDict('Rangeint64', {
    'high': Required['int'],
    'low': Required['int'],
    'value': Required['int'],
}, total=False)

RelayPort = TypedDict('RelayPort', {
    'hosts': Required['list[str]'],
    'port': Required['int'],
}, total=False)
RelayPort.__doc__ = 'RelayPort is where a host relays for two others.'

Remains = TypedDict('Remains', {
    'at': NotRequired['str'],
    'console': NotRequired['list[str]'],
    'died': NotRequired['bool'],
    'folder': NotRequired['str'],
    'killed': NotRequired['bool'],
    'log': NotRequired['list[str]'],
    'max_tasks': NotRequired['int'],
    'oom_kills': NotRequired['int'],
    'reason': NotRequired['str'],
    'refused': NotRequired['int'],
    'why': NotRequired['str'],
}, total=False)
Remains.__doc__ = 'Remains is what is kept of a guest that ended by itself, for people. It is small, because it is stored; the host keeps more in Folder.'

Remark = TypedDict('Remark', {
    'ago_ns': Required['int'],
    'level': Required['str'],
    'text': Required['str'],
}, total=False)
Remark.__doc__ = "Remark is what a program says of its job's health."

Resources = TypedDict('Resources', {
    'cpus': Required['int'],
    'device': NotRequired['str'],
    'memory_bytes': Required['int'],
}, total=False)
Resources.__doc__ = 'Resources are what a guest needs and a host offers.'

Resuming = TypedDict('Resuming', {
    'about': NotRequired['bool'],
    'took_ns': Required['int'],
}, total=False)
Resuming.__doc__ = "Resuming is the second part of a guest's blackout: from the source's end of Progress.Downtime until the guest ran at the target. In it the controller gets the report, commits it and sends the next order."

Round = TypedDict('Round', {
    'at_ns': Required['int'],
    'left_bytes': Required['int'],
    'number': Required['int'],
    'sent_bytes': Required['int'],
}, total=False)
Round.__doc__ = 'Round is one round of a copy, as first observed, right after it began. A copy is sampled at intervals, so some shorter rounds are missing.'

RulesAsked = TypedDict('RulesAsked', {
    'cpu_level': NotRequired['str'],
    'placement': NotRequired['str'],
    'vacate': NotRequired['str'],
}, total=False)
RulesAsked.__doc__ = "Rules are the cluster's defaults for hosts that do not set their own, and the CPU of virtual machines, whatever hosts set."

Said = TypedDict('Said', {
    'marks': NotRequired['Marks'],
    'remark': NotRequired['Remark'],
    'version': Required['int'],
    'wishes': NotRequired['list[Wish]'],
}, total=False)
Said.__doc__ = "Said is what a guest's programs say and ask for."

SealedCopy = TypedDict('SealedCopy', {
    'seal': Required['str'],
    'text': Required['str'],
}, total=False)
SealedCopy.__doc__ = 'SealedCopy is a CheckpointCopy with the proof that this cluster has made it.'

Sent = TypedDict('Sent', {
    'bytes': Required['int'],
    'messages': Required['int'],
    'rank': Required['int'],
}, total=False)
Sent.__doc__ = 'Sent is what one rank received.'

Shape = TypedDict('Shape', {
    'cores': Required['int'],
    'cpu': NotRequired['str'],
    'nodes': NotRequired['list[ShapeNode]'],
    'sockets': Required['int'],
    'threads': Required['int'],
}, total=False)
Shape.__doc__ = 'Shape is the topology that a guest sees. It never changes, wherever the guest moves.'

ShapeNode = TypedDict('ShapeNode', {
    'cpus': Required['int'],
    'distances': NotRequired['list[int]'],
    'memory_bytes': Required['int'],
}, total=False)
ShapeNode.__doc__ = "ShapeNode is a node's memory and the number of its CPUs. A guest's CPUs are numbered in the order of its nodes."

Sign = TypedDict('Sign', {
    'count': NotRequired['int'],
    'grave': Required['bool'],
    'kind': Required['str'],
    'last': Required['str'],
    'says': NotRequired['str'],
    'since': Required['str'],
    'where': NotRequired['str'],
}, total=False)
Sign.__doc__ = 'Sign is something that says that a host may fail soon.'

SignalAsked = TypedDict('SignalAsked', {
    'asks': Required['str'],
    'incarnation': NotRequired['int'],
    'request': Required['str'],
}, total=False)
SignalAsked.__doc__ = 'SignalAsked is a request with a key (Idempotency-Key) that sent a job a signal.'

SitePath = TypedDict('SitePath', {
    'bytes_per_second': NotRequired['list[float]'],
    'kind': Required['str'],
    'latency_ns': NotRequired['int'],
    'lost': Required['float'],
    'paths': Required['list[HostPath]'],
    'relays': NotRequired['list[str]'],
    'since': NotRequired['str'],
    'sites': Required['list[str]'],
}, total=False)
SitePath.__doc__ = 'SitePath is how two sites reach each other, as their hosts measure it.'

Skew = TypedDict('Skew', {
    'blackout_ns': NotRequired['int'],
    'resumes_ns': NotRequired['int'],
    'suspends_ns': NotRequired['int'],
    'switch_ns': Required['int'],
}, total=False)
Skew.__doc__ = "Skew says how closely a gang's guests switched. Hosts' clocks may differ, so times of two hosts are compared only if one clock measured both. The controller's own measure is always there."

Speed = TypedDict('Speed', {
    'copy_bytes_per_second': Required['float'],
    'link_bytes_per_second': NotRequired['float'],
    'process_start_ns': Required['int'],
    'scan_bytes_per_second': Required['float'],
}, total=False)
Speed.__doc__ = 'Speed is what an agent measured of its host as it began. It stands in for past moves where there are none.'

Stall = TypedDict('Stall', {
    'at': Required['str'],
    'at_switch_ns': Required['int'],
    'call': NotRequired['str'],
    'in_mpi': Required['bool'],
    'open': NotRequired['bool'],
    'rank': Required['int'],
    'ranks': Required['int'],
    'took_ns': Required['int'],
    'undisturbed_ns': Required['int'],
    'why': NotRequired['list[Cause]'],
}, total=False)
Stall.__doc__ = "Stall is what a job's ranks saw of one migration: the longest gap of any rank around its switch. Took includes the time the guest was suspended, in which its own clock may stop."

TimeSlice = TypedDict('TimeSlice', {
    'length_ns': Required['int'],
    'why': Required['str'],
}, total=False)
TimeSlice.__doc__ = "TimeSlice is how long a guest's processors run before others do, if these want to."

Token = TypedDict('Token', {
    'expires': Required['str'],
    'token': Required['str'],
}, total=False)
Token.__doc__ = 'Token is a new token, which is told once.'

Topology = TypedDict('Topology', {
    'level': NotRequired['str'],
    'nodes': Required['list[Node]'],
    'transparent': NotRequired['bool'],
}, total=False)
Topology.__doc__ = "Topology is a host's processors and memory."

Trace = TypedDict('Trace', {
    'at': Required['str'],
    'begun': Required['str'],
    'calls': Required['dict[str, Calls]'],
    'elapsed_ns': Required['int'],
    'elsewhere': Required['Sent'],
    'ended': Required['bool'],
    'gaps': NotRequired['list[Gap]'],
    'guest': NotRequired['str'],
    'handed': Required['Sent'],
    'newest': NotRequired['list[Call]'],
    'normal_ns': Required['int'],
    'outside_ns': Required['int'],
    'rank': Required['int'],
    'ranks': Required['int'],
    'seconds_ns': NotRequired['list[int]'],
    'sent': NotRequired['list[Sent]'],
    'span_ns': NotRequired['int'],
    'spans_percent': NotRequired['dict[str, list[int]]'],
}, total=False)
Trace.__doc__ = 'Trace is what one rank has done with MPI so far. Messages are counted by the sender, because MPI tells a receiver less.'

Traffic = TypedDict('Traffic', {
    'a': Required['int'],
    'b': Required['int'],
    'bytes': Required['int'],
    'messages': Required['int'],
}, total=False)
Traffic.__doc__ = 'Traffic is what ranks in two guests have sent to each other since the program began, without collective calls.'

Tune = TypedDict('Tune', {
    'huge': NotRequired['bool'],
    'numa': NotRequired['bool'],
    'pin': NotRequired['bool'],
}, total=False)
Tune.__doc__ = 'Tune says what guests mirror of their hosts. With the zero value their CPUs float, and their memory is anywhere.'

Unwell = TypedDict('Unwell', {
    'emptied': Required['bool'],
    'guests': Required['int'],
    'host': Required['str'],
    'policy': Required['str'],
    'signs': Required['list[Sign]'],
    'state': Required['str'],
}, total=False)
Unwell.__doc__ = 'Unwell is a host with signs of failing.'

UsageReport = TypedDict('UsageReport', {
    'by': Required['str'],
    'no_power': NotRequired['dict[str, str]'],
    'rows': Required['list[UsageRow]'],
    'since': Required['str'],
    'until': Required['str'],
}, total=False)
UsageReport.__doc__ = 'UsageReport is what jobs used since a time, added up by user, job or host.'

UsageRow = TypedDict('UsageRow', {
    'began': NotRequired['Any'],
    'blackout_seconds': NotRequired['float'],
    'cpu_seconds': Required['float'],
    'ended': NotRequired['Any'],
    'held_cpu_seconds': Required['float'],
    'held_memory_byte_seconds': Required['float'],
    'host': NotRequired['str'],
    'job': NotRequired['str'],
    'jobs': Required['int'],
    'joules': NotRequired['float'],
    'memory_byte_seconds': Required['float'],
    'metered_cpu_seconds': NotRequired['float'],
    'moved_bytes': NotRequired['int'],
    'moves': NotRequired['int'],
    'program': NotRequired['str'],
    'result': NotRequired['str'],
    'stopped_seconds': Required['float'],
    'suspended_seconds': NotRequired['float'],
    'uid': NotRequired['int'],
    'user': NotRequired['str'],
}, total=False)
UsageRow.__doc__ = "UsageRow is what a user's jobs, a job, or jobs on a host used."

User = TypedDict('User', {
    'gid': Required['int'],
    'groups': NotRequired['list[int]'],
    'id': Required['str'],
    'keys': NotRequired['list[str]'],
    'owns': NotRequired['list[str]'],
    'role': Required['str'],
    'since': Required['str'],
    'uid': Required['int'],
}, total=False)
User.__doc__ = "User is a person or program that is known by certificates, and by uid on the controller's own machine."

UserAsked = TypedDict('UserAsked', {
    'gid': NotRequired['int'],
    'groups': NotRequired['list[int]'],
    'id': NotRequired['str'],
    'keys': NotRequired['list[str]'],
    'owns': NotRequired['list[str]'],
    'role': NotRequired['str'],
    'since': NotRequired['str'],
    'uid': NotRequired['int'],
}, total=False)
UserAsked.__doc__ = "User is a person or program that is known by certificates, and by uid on the controller's own machine."

UserChanges = TypedDict('UserChanges', {
    'bytes': Required['int'],
    'requests': Required['int'],
    'uid': Required['int'],
    'user': NotRequired['str'],
}, total=False)
UserChanges.__doc__ = "UserChanges is one user's part of that."

UserCheckpoints = TypedDict('UserCheckpoints', {
    'bytes': Required['int'],
    'count': Required['int'],
    'uid': Required['int'],
    'user': NotRequired['str'],
}, total=False)
UserCheckpoints.__doc__ = "UserCheckpoints is one user's part of that."

UserGrowth = TypedDict('UserGrowth', {
    'guests': Required['int'],
    'uid': Required['int'],
    'user': NotRequired['str'],
}, total=False)
UserGrowth.__doc__ = "UserGrowth is one user's part of that."

UserImages = TypedDict('UserImages', {
    'bytes': Required['int'],
    'names': Required['list[str]'],
    'uid': Required['int'],
    'user': NotRequired['str'],
}, total=False)
UserImages.__doc__ = "UserImages is one user's part of that."

UserOutput = TypedDict('UserOutput', {
    'bytes': Required['int'],
    'jobs': Required['list[JobOutput]'],
    'uid': Required['int'],
    'user': NotRequired['str'],
    'waits': NotRequired['str'],
}, total=False)
UserOutput.__doc__ = "UserOutput is one user's part of that."

VaultFacts = TypedDict('VaultFacts', {
    'each_bytes': NotRequired['int'],
    'free_bytes': Required['int'],
    'listen': Required['str'],
    'used_bytes': Required['int'],
}, total=False)
VaultFacts.__doc__ = "VaultFacts is what an agent says of its host's vault."

Who = TypedDict('Who', {
    'admin': Required['bool'],
    'cluster': NotRequired['str'],
    'gid': Required['int'],
    'guest': NotRequired['str'],
    'host': NotRequired['str'],
    'pages': NotRequired['list[str]'],
    'uid': Required['int'],
    'user': NotRequired['str'],
}, total=False)
Who.__doc__ = 'Who is how a caller is known, and to which cluster.'

WireGuardEnd = TypedDict('WireGuardEnd', {
    'key': Required['str'],
    'port': Required['int'],
}, total=False)
WireGuardEnd.__doc__ = "WireGuardEnd is what other hosts must know of a host's WireGuard device. Its private key is on its host only."

WireGuardFacts = TypedDict('WireGuardFacts', {
    'by': NotRequired['str'],
    'key': Required['str'],
    'mapped': NotRequired['list[str]'],
    'paths': NotRequired['dict[str, Path]'],
    'port': Required['int'],
    'relayed': NotRequired['list[RelayPort]'],
    'relays': NotRequired['bool'],
    'trouble': NotRequired['str'],
}, total=False)
WireGuardFacts.__doc__ = 'WireGuardFacts is what an agent reports about its WireGuard device.'

Wish = TypedDict('Wish', {
    'aim': NotRequired['str'],
    'count': NotRequired['int'],
    'id': Required['int'],
    'rank': NotRequired['int'],
    'ranks': NotRequired['int'],
    'verb': Required['str'],
    'whole': NotRequired['bool'],
    'within_ns': NotRequired['int'],
}, total=False)
Wish.__doc__ = "Wish is what a program in a guest asks of its own job, in the job's own authority. The guest agent keeps it until it is answered, also while the guest moves."

Written = TypedDict('Written', {
    'began': Required['dict[str, int]'],
    'sizes': Required['dict[str, int]'],
}, total=False)
Written.__doc__ = 'Written is how much output a job had at a checkpoint, by stream.'


def _quoted(part: str) -> str:
    return quote(part, safe="")


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _texts(fields: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in _given(fields).items()}


class Operations:
    """All operations that answer with one value."""

    def _call(self, method: str, path: str, query: Mapping[str, str], body: Any, key: Optional[str]) -> Any:
        raise NotImplementedError

    def cancel_job(self, job: str, *, grace_ns: Optional[int] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Cancel jobs. Like `pagurus job cancel`."""
        return cast('Answer', self._call('POST', f'/jobs/{_quoted(job)}/cancel', _texts({}), _given({'grace_ns': grace_ns}), idempotency_key))

    def cancel_move(self, move: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Cancel a move before its guests switch. Like `pagurus move cancel`."""
        return cast('Answer', self._call('POST', f'/moves/{_quoted(move)}/cancel', _texts({}), None, idempotency_key))

    def claim_host(self, host: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Say that a host's owner needs it now, whatever its sensors report. Like `pagurus host claim`."""
        return cast('Answer', self._call('POST', f'/hosts/{_quoted(host)}/claim', _texts({}), None, idempotency_key))

    def create_token(self, body: JoinTokenAsked, *, idempotency_key: Optional[str] = None) -> Token:
        """Create a join token and print it. Like `pagurus token create`."""
        return cast('Token', self._call('POST', f'/tokens', _texts({}), body, idempotency_key))

    def drain_host(self, host: str, *, limits: Optional[Limits] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Move all guests off a host and keep it empty. Like `pagurus host drain`."""
        return cast('Answer', self._call('POST', f'/hosts/{_quoted(host)}/drain', _texts({}), _given({'limits': limits}), idempotency_key))

    def explain_guest(self, guest: str) -> Explanation:
        """Explain why something is where it is, and its state. Like `pagurus guest explain`."""
        return cast('Explanation', self._call('GET', f'/guests/{_quoted(guest)}/explanation', _texts({}), None, None))

    def explain_host(self, host: str) -> Explanation:
        """Explain why something is where it is, and its state. Like `pagurus host explain`."""
        return cast('Explanation', self._call('GET', f'/hosts/{_quoted(host)}/explanation', _texts({}), None, None))

    def explain_job(self, job: str) -> Explanation:
        """Explain why something is where it is, and its state. Like `pagurus job explain`."""
        return cast('Explanation', self._call('GET', f'/jobs/{_quoted(job)}/explanation', _texts({}), None, None))

    def explain_move(self, move: str) -> Explanation:
        """Explain why something is where it is, and its state. Like `pagurus move explain`."""
        return cast('Explanation', self._call('GET', f'/moves/{_quoted(move)}/explanation', _texts({}), None, None))

    def forget_host(self, host: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove a host that is gone for good. Like `pagurus host forget`."""
        return cast('Answer', self._call('DELETE', f'/hosts/{_quoted(host)}', _texts({}), None, idempotency_key))

    def grow_job(self, job: str, *, count: Optional[int] = None, within_ns: Optional[int] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Give a running job more guests, as its program may ask for them."""
        return cast('Answer', self._call('POST', f'/jobs/{_quoted(job)}/grow', _texts({}), _given({'count': count, 'within_ns': within_ns}), idempotency_key))

    def isolate_cp_us(self, host: str, *, isolation: Optional[IsolationRequest] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Isolate some of a host's CPUs for guests, or put everything back. Like `pagurus host isolate`."""
        return cast('Answer', self._call('POST', f'/hosts/{_quoted(host)}/isolate', _texts({}), _given({'isolation': isolation}), idempotency_key))

    def list_audit(self, *, since: Optional[str] = None) -> list[AuditRecord]:
        """Show who did what, when and from where. Like `pagurus audit`."""
        return cast('list[AuditRecord]', self._call('GET', f'/audit', _texts({'since': since}), None, None))

    def list_checkpoints(self, *, job: Optional[str] = None) -> list[Checkpoint]:
        """List the checkpoints, of one job or of all. Like `pagurus checkpoint ls`."""
        return cast('list[Checkpoint]', self._call('GET', f'/checkpoints', _texts({'job': job}), None, None))

    def list_controllers(self) -> list[Head]:
        """List the cluster's controllers. Like `pagurus controller ls`."""
        return cast('list[Head]', self._call('GET', f'/controllers', _texts({}), None, None))

    def list_guests(self) -> list[Guest]:
        """List the guests and where they are. Like `pagurus guest ls`."""
        return cast('list[Guest]', self._call('GET', f'/guests', _texts({}), None, None))

    def list_health(self) -> list[Unwell]:
        """Show hosts with signs of failing, and what was done about it. Like `pagurus health`."""
        return cast('list[Unwell]', self._call('GET', f'/health', _texts({}), None, None))

    def list_hosts(self) -> list[Host]:
        """List the hosts. Like `pagurus host ls`."""
        return cast('list[Host]', self._call('GET', f'/hosts', _texts({}), None, None))

    def list_jobs(self) -> list[Job]:
        """List the jobs. Like `pagurus job ls`."""
        return cast('list[Job]', self._call('GET', f'/jobs', _texts({}), None, None))

    def list_kinds(self) -> list[GuestKind]:
        """Show what each kind of guest can do, and on which hosts. Like `pagurus kinds`."""
        return cast('list[GuestKind]', self._call('GET', f'/kinds', _texts({}), None, None))

    def list_moves(self) -> list[Move]:
        """List the moves, under way and past. Like `pagurus move ls`."""
        return cast('list[Move]', self._call('GET', f'/moves', _texts({}), None, None))

    def list_policies(self) -> list[Policy]:
        """List the policies, and which one is in force. Like `pagurus policy ls`."""
        return cast('list[Policy]', self._call('GET', f'/policies', _texts({}), None, None))

    def list_sites(self) -> list[SitePath]:
        """Show how sites reach each other: directly or relayed, how fast, how much. Like `pagurus sites`."""
        return cast('list[SitePath]', self._call('GET', f'/sites', _texts({}), None, None))

    def list_tokens(self) -> list[JoinToken]:
        """List the join tokens. Like `pagurus token ls`."""
        return cast('list[JoinToken]', self._call('GET', f'/tokens', _texts({}), None, None))

    def list_users(self) -> list[User]:
        """List the users. Like `pagurus user ls`."""
        return cast('list[User]', self._call('GET', f'/users', _texts({}), None, None))

    def log_out(self, *, idempotency_key: Optional[str] = None) -> Answer:
        """End this account's login. Like `pagurus logout`."""
        return cast('Answer', self._call('POST', f'/logout', _texts({}), None, idempotency_key))

    def make_checkpoint(self, job: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Keep the state of a running job, to go on from it. Like `pagurus checkpoint`."""
        return cast('Answer', self._call('POST', f'/jobs/{_quoted(job)}/checkpoints', _texts({}), None, idempotency_key))

    def migrate(self, *, guest: Optional[str] = None, guests: Optional[list[str]] = None, host: Optional[str] = None, job: Optional[str] = None, limits: Optional[Limits] = None, to: Optional[str] = None, to_site: Optional[str] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Move guests to other hosts while they run. Like `pagurus guest migrate`."""
        return cast('Answer', self._call('POST', f'/moves', _texts({}), _given({'guest': guest, 'guests': guests, 'host': host, 'job': job, 'limits': limits, 'to': to, 'to_site': to_site}), idempotency_key))

    def predict_drain(self, host: str, *, limits: Optional[Limits] = None) -> Forecast:
        """Predict what draining a host would cost now, and do nothing."""
        return cast('Forecast', self._call('POST', f'/hosts/{_quoted(host)}/drain/prediction', _texts({}), _given({'limits': limits}), None))

    def predict_move(self, *, guest: Optional[str] = None, guests: Optional[list[str]] = None, host: Optional[str] = None, job: Optional[str] = None, limits: Optional[Limits] = None, to: Optional[str] = None, to_site: Optional[str] = None) -> Forecast:
        """Predict what a move would cost now, and do nothing. Like `pagurus move predict`."""
        return cast('Forecast', self._call('POST', f'/moves/prediction', _texts({}), _given({'guest': guest, 'guests': guests, 'host': host, 'job': job, 'limits': limits, 'to': to, 'to_site': to_site}), None))

    def release_host(self, host: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Say that a host's owner no longer needs it. Like `pagurus host release`."""
        return cast('Answer', self._call('POST', f'/hosts/{_quoted(host)}/release', _texts({}), None, idempotency_key))

    def remove_checkpoint(self, checkpoint: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove checkpoints, or give up one that is being made. Like `pagurus checkpoint rm`."""
        return cast('Answer', self._call('DELETE', f'/checkpoints/{_quoted(checkpoint)}', _texts({}), None, idempotency_key))

    def remove_controller(self, controller: str) -> dict[str, Any]:
        """Remove a controller that does not lead from the cluster. Like `pagurus controller remove`."""
        return cast('dict[str, Any]', self._call('DELETE', f'/controllers/{_quoted(controller)}', _texts({}), None, None))

    def remove_job(self, job: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove ended jobs with their output. Like `pagurus job rm`."""
        return cast('Answer', self._call('DELETE', f'/jobs/{_quoted(job)}', _texts({}), None, idempotency_key))

    def remove_token(self, token: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove a join token; members that joined by it stay. Like `pagurus token rm`."""
        return cast('Answer', self._call('DELETE', f'/tokens/{_quoted(token)}', _texts({}), None, idempotency_key))

    def remove_user(self, user: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove a user with all logins; the user's jobs go on. Like `pagurus user rm`."""
        return cast('Answer', self._call('DELETE', f'/users/{_quoted(user)}', _texts({}), None, idempotency_key))

    def restart_job(self, job: str, *, beginning: Optional[bool] = None, checkpoint: Optional[str] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Begin a job again, from its newest checkpoint or another one. Like `pagurus job restart`."""
        return cast('Answer', self._call('POST', f'/jobs/{_quoted(job)}/restart', _texts({}), _given({'beginning': beginning, 'checkpoint': checkpoint}), idempotency_key))

    def resume_job(self, job: str, *, on: Optional[list[str]] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Let a suspended job go on, as soon as there is room. Like `pagurus job resume`."""
        return cast('Answer', self._call('POST', f'/jobs/{_quoted(job)}/resume', _texts({}), _given({'on': on}), idempotency_key))

    def set_host_policy(self, host: str, body: OwnerPolicyAsked, *, idempotency_key: Optional[str] = None) -> OwnerPolicy:
        """Show or set what happens to guests when a host's owner is there. Like `pagurus host policy`."""
        return cast('OwnerPolicy', self._call('PUT', f'/hosts/{_quoted(host)}/policy', _texts({}), body, idempotency_key))

    def set_policy(self, body: RulesAsked, *, idempotency_key: Optional[str] = None) -> Policy:
        """Set the policy in force. Like `pagurus policy set`."""
        return cast('Policy', self._call('PUT', f'/policy', _texts({}), body, idempotency_key))

    def set_user(self, user: str, body: UserAsked, *, idempotency_key: Optional[str] = None) -> Answer:
        """Add a user, or change one. Like `pagurus user add`."""
        return cast('Answer', self._call('PUT', f'/users/{_quoted(user)}', _texts({}), body, idempotency_key))

    def show_checkpoint(self, checkpoint: str) -> Checkpoint:
        """Show a checkpoint with the part of each guest. Like `pagurus checkpoint show`."""
        return cast('Checkpoint', self._call('GET', f'/checkpoints/{_quoted(checkpoint)}', _texts({}), None, None))

    def show_guest(self, guest: str) -> Guest:
        """Show one guest."""
        return cast('Guest', self._call('GET', f'/guests/{_quoted(guest)}', _texts({}), None, None))

    def show_host(self, host: str) -> Host:
        """Show one host."""
        return cast('Host', self._call('GET', f'/hosts/{_quoted(host)}', _texts({}), None, None))

    def show_host_policy(self, host: str) -> OwnerPolicy:
        """Show one host."""
        return cast('OwnerPolicy', self._call('GET', f'/hosts/{_quoted(host)}/policy', _texts({}), None, None))

    def show_job(self, job: str) -> JobDetail:
        """Show what a job's ranks do, and how moves affected them. Like `pagurus job show`."""
        return cast('JobDetail', self._call('GET', f'/jobs/{_quoted(job)}', _texts({}), None, None))

    def show_move(self, move: str) -> Move:
        """Show a move: its phases, what it sent, the downtime. Like `pagurus move show`."""
        return cast('Move', self._call('GET', f'/moves/{_quoted(move)}', _texts({}), None, None))

    def show_policy(self, policy: str) -> Policy:
        """Show what a policy does. Like `pagurus policy show`."""
        return cast('Policy', self._call('GET', f'/policies/{_quoted(policy)}', _texts({}), None, None))

    def show_quota(self) -> Output:
        """Show how much output, checkpoints and images are kept, of whom, by how much jobs have grown, and what may be. Like `pagurus quota`."""
        return cast('Output', self._call('GET', f'/quota', _texts({}), None, None))

    def show_score(self) -> Calibration:
        """Show how good past predictions were."""
        return cast('Calibration', self._call('GET', f'/score', _texts({}), None, None))

    def show_usage(self, *, since: Optional[str] = None, by: Optional[str] = None, user: Optional[str] = None, host: Optional[str] = None) -> UsageReport:
        """Show what users, jobs and hosts used: processors, memory, moves, energy. Like `pagurus usage`."""
        return cast('UsageReport', self._call('GET', f'/usage', _texts({'since': since, 'by': by, 'user': user, 'host': host}), None, None))

    def signal_job(self, job: str, *, signal: Optional[str] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Send a signal to the ranks of a job. Like `pagurus job signal`."""
        return cast('Answer', self._call('POST', f'/jobs/{_quoted(job)}/signal', _texts({}), _given({'signal': signal}), idempotency_key))

    def submit_job(self, *, now: Optional[bool] = None, spec: Optional[JobSpec] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Run an MPI program in guests, as mpirun would. Like `pagurus job run`."""
        return cast('Answer', self._call('POST', f'/jobs', _texts({}), _given({'now': now, 'spec': spec}), idempotency_key))

    def suspend_job(self, job: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Suspend a running job: keep its state, and free its hosts. Like `pagurus job suspend`."""
        return cast('Answer', self._call('POST', f'/jobs/{_quoted(job)}/suspend', _texts({}), None, idempotency_key))

    def take_checkpoint(self, job: str, *, copy: Optional[SealedCopy] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Have vaults get ready for a copy of a checkpoint that comes back."""
        return cast('Answer', self._call('POST', f'/jobs/{_quoted(job)}/copies', _texts({}), _given({'copy': copy}), idempotency_key))

    def undrain_host(self, host: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Let a drained host run guests again. Like `pagurus host undrain`."""
        return cast('Answer', self._call('POST', f'/hosts/{_quoted(host)}/undrain', _texts({}), None, idempotency_key))

    def wait_for_job(self, job: str) -> Job:
        """Wait for jobs to end. Like `pagurus job wait`."""
        return cast('Job', self._call('GET', f'/jobs/{_quoted(job)}/wait', _texts({}), None, None))

    def who_am_i(self) -> Who:
        """Show who you are to the controller. Like `pagurus whoami`."""
        return cast('Who', self._call('GET', f'/whoami', _texts({}), None, None))


class AsyncOperations:
    """All operations that answer with one value."""

    async def _call(self, method: str, path: str, query: Mapping[str, str], body: Any, key: Optional[str]) -> Any:
        raise NotImplementedError

    async def cancel_job(self, job: str, *, grace_ns: Optional[int] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Cancel jobs. Like `pagurus job cancel`."""
        return cast('Answer', await self._call('POST', f'/jobs/{_quoted(job)}/cancel', _texts({}), _given({'grace_ns': grace_ns}), idempotency_key))

    async def cancel_move(self, move: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Cancel a move before its guests switch. Like `pagurus move cancel`."""
        return cast('Answer', await self._call('POST', f'/moves/{_quoted(move)}/cancel', _texts({}), None, idempotency_key))

    async def claim_host(self, host: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Say that a host's owner needs it now, whatever its sensors report. Like `pagurus host claim`."""
        return cast('Answer', await self._call('POST', f'/hosts/{_quoted(host)}/claim', _texts({}), None, idempotency_key))

    async def create_token(self, body: JoinTokenAsked, *, idempotency_key: Optional[str] = None) -> Token:
        """Create a join token and print it. Like `pagurus token create`."""
        return cast('Token', await self._call('POST', f'/tokens', _texts({}), body, idempotency_key))

    async def drain_host(self, host: str, *, limits: Optional[Limits] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Move all guests off a host and keep it empty. Like `pagurus host drain`."""
        return cast('Answer', await self._call('POST', f'/hosts/{_quoted(host)}/drain', _texts({}), _given({'limits': limits}), idempotency_key))

    async def explain_guest(self, guest: str) -> Explanation:
        """Explain why something is where it is, and its state. Like `pagurus guest explain`."""
        return cast('Explanation', await self._call('GET', f'/guests/{_quoted(guest)}/explanation', _texts({}), None, None))

    async def explain_host(self, host: str) -> Explanation:
        """Explain why something is where it is, and its state. Like `pagurus host explain`."""
        return cast('Explanation', await self._call('GET', f'/hosts/{_quoted(host)}/explanation', _texts({}), None, None))

    async def explain_job(self, job: str) -> Explanation:
        """Explain why something is where it is, and its state. Like `pagurus job explain`."""
        return cast('Explanation', await self._call('GET', f'/jobs/{_quoted(job)}/explanation', _texts({}), None, None))

    async def explain_move(self, move: str) -> Explanation:
        """Explain why something is where it is, and its state. Like `pagurus move explain`."""
        return cast('Explanation', await self._call('GET', f'/moves/{_quoted(move)}/explanation', _texts({}), None, None))

    async def forget_host(self, host: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove a host that is gone for good. Like `pagurus host forget`."""
        return cast('Answer', await self._call('DELETE', f'/hosts/{_quoted(host)}', _texts({}), None, idempotency_key))

    async def grow_job(self, job: str, *, count: Optional[int] = None, within_ns: Optional[int] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Give a running job more guests, as its program may ask for them."""
        return cast('Answer', await self._call('POST', f'/jobs/{_quoted(job)}/grow', _texts({}), _given({'count': count, 'within_ns': within_ns}), idempotency_key))

    async def isolate_cp_us(self, host: str, *, isolation: Optional[IsolationRequest] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Isolate some of a host's CPUs for guests, or put everything back. Like `pagurus host isolate`."""
        return cast('Answer', await self._call('POST', f'/hosts/{_quoted(host)}/isolate', _texts({}), _given({'isolation': isolation}), idempotency_key))

    async def list_audit(self, *, since: Optional[str] = None) -> list[AuditRecord]:
        """Show who did what, when and from where. Like `pagurus audit`."""
        return cast('list[AuditRecord]', await self._call('GET', f'/audit', _texts({'since': since}), None, None))

    async def list_checkpoints(self, *, job: Optional[str] = None) -> list[Checkpoint]:
        """List the checkpoints, of one job or of all. Like `pagurus checkpoint ls`."""
        return cast('list[Checkpoint]', await self._call('GET', f'/checkpoints', _texts({'job': job}), None, None))

    async def list_controllers(self) -> list[Head]:
        """List the cluster's controllers. Like `pagurus controller ls`."""
        return cast('list[Head]', await self._call('GET', f'/controllers', _texts({}), None, None))

    async def list_guests(self) -> list[Guest]:
        """List the guests and where they are. Like `pagurus guest ls`."""
        return cast('list[Guest]', await self._call('GET', f'/guests', _texts({}), None, None))

    async def list_health(self) -> list[Unwell]:
        """Show hosts with signs of failing, and what was done about it. Like `pagurus health`."""
        return cast('list[Unwell]', await self._call('GET', f'/health', _texts({}), None, None))

    async def list_hosts(self) -> list[Host]:
        """List the hosts. Like `pagurus host ls`."""
        return cast('list[Host]', await self._call('GET', f'/hosts', _texts({}), None, None))

    async def list_jobs(self) -> list[Job]:
        """List the jobs. Like `pagurus job ls`."""
        return cast('list[Job]', await self._call('GET', f'/jobs', _texts({}), None, None))

    async def list_kinds(self) -> list[GuestKind]:
        """Show what each kind of guest can do, and on which hosts. Like `pagurus kinds`."""
        return cast('list[GuestKind]', await self._call('GET', f'/kinds', _texts({}), None, None))

    async def list_moves(self) -> list[Move]:
        """List the moves, under way and past. Like `pagurus move ls`."""
        return cast('list[Move]', await self._call('GET', f'/moves', _texts({}), None, None))

    async def list_policies(self) -> list[Policy]:
        """List the policies, and which one is in force. Like `pagurus policy ls`."""
        return cast('list[Policy]', await self._call('GET', f'/policies', _texts({}), None, None))

    async def list_sites(self) -> list[SitePath]:
        """Show how sites reach each other: directly or relayed, how fast, how much. Like `pagurus sites`."""
        return cast('list[SitePath]', await self._call('GET', f'/sites', _texts({}), None, None))

    async def list_tokens(self) -> list[JoinToken]:
        """List the join tokens. Like `pagurus token ls`."""
        return cast('list[JoinToken]', await self._call('GET', f'/tokens', _texts({}), None, None))

    async def list_users(self) -> list[User]:
        """List the users. Like `pagurus user ls`."""
        return cast('list[User]', await self._call('GET', f'/users', _texts({}), None, None))

    async def log_out(self, *, idempotency_key: Optional[str] = None) -> Answer:
        """End this account's login. Like `pagurus logout`."""
        return cast('Answer', await self._call('POST', f'/logout', _texts({}), None, idempotency_key))

    async def make_checkpoint(self, job: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Keep the state of a running job, to go on from it. Like `pagurus checkpoint`."""
        return cast('Answer', await self._call('POST', f'/jobs/{_quoted(job)}/checkpoints', _texts({}), None, idempotency_key))

    async def migrate(self, *, guest: Optional[str] = None, guests: Optional[list[str]] = None, host: Optional[str] = None, job: Optional[str] = None, limits: Optional[Limits] = None, to: Optional[str] = None, to_site: Optional[str] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Move guests to other hosts while they run. Like `pagurus guest migrate`."""
        return cast('Answer', await self._call('POST', f'/moves', _texts({}), _given({'guest': guest, 'guests': guests, 'host': host, 'job': job, 'limits': limits, 'to': to, 'to_site': to_site}), idempotency_key))

    async def predict_drain(self, host: str, *, limits: Optional[Limits] = None) -> Forecast:
        """Predict what draining a host would cost now, and do nothing."""
        return cast('Forecast', await self._call('POST', f'/hosts/{_quoted(host)}/drain/prediction', _texts({}), _given({'limits': limits}), None))

    async def predict_move(self, *, guest: Optional[str] = None, guests: Optional[list[str]] = None, host: Optional[str] = None, job: Optional[str] = None, limits: Optional[Limits] = None, to: Optional[str] = None, to_site: Optional[str] = None) -> Forecast:
        """Predict what a move would cost now, and do nothing. Like `pagurus move predict`."""
        return cast('Forecast', await self._call('POST', f'/moves/prediction', _texts({}), _given({'guest': guest, 'guests': guests, 'host': host, 'job': job, 'limits': limits, 'to': to, 'to_site': to_site}), None))

    async def release_host(self, host: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Say that a host's owner no longer needs it. Like `pagurus host release`."""
        return cast('Answer', await self._call('POST', f'/hosts/{_quoted(host)}/release', _texts({}), None, idempotency_key))

    async def remove_checkpoint(self, checkpoint: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove checkpoints, or give up one that is being made. Like `pagurus checkpoint rm`."""
        return cast('Answer', await self._call('DELETE', f'/checkpoints/{_quoted(checkpoint)}', _texts({}), None, idempotency_key))

    async def remove_controller(self, controller: str) -> dict[str, Any]:
        """Remove a controller that does not lead from the cluster. Like `pagurus controller remove`."""
        return cast('dict[str, Any]', await self._call('DELETE', f'/controllers/{_quoted(controller)}', _texts({}), None, None))

    async def remove_job(self, job: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove ended jobs with their output. Like `pagurus job rm`."""
        return cast('Answer', await self._call('DELETE', f'/jobs/{_quoted(job)}', _texts({}), None, idempotency_key))

    async def remove_token(self, token: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove a join token; members that joined by it stay. Like `pagurus token rm`."""
        return cast('Answer', await self._call('DELETE', f'/tokens/{_quoted(token)}', _texts({}), None, idempotency_key))

    async def remove_user(self, user: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Remove a user with all logins; the user's jobs go on. Like `pagurus user rm`."""
        return cast('Answer', await self._call('DELETE', f'/users/{_quoted(user)}', _texts({}), None, idempotency_key))

    async def restart_job(self, job: str, *, beginning: Optional[bool] = None, checkpoint: Optional[str] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Begin a job again, from its newest checkpoint or another one. Like `pagurus job restart`."""
        return cast('Answer', await self._call('POST', f'/jobs/{_quoted(job)}/restart', _texts({}), _given({'beginning': beginning, 'checkpoint': checkpoint}), idempotency_key))

    async def resume_job(self, job: str, *, on: Optional[list[str]] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Let a suspended job go on, as soon as there is room. Like `pagurus job resume`."""
        return cast('Answer', await self._call('POST', f'/jobs/{_quoted(job)}/resume', _texts({}), _given({'on': on}), idempotency_key))

    async def set_host_policy(self, host: str, body: OwnerPolicyAsked, *, idempotency_key: Optional[str] = None) -> OwnerPolicy:
        """Show or set what happens to guests when a host's owner is there. Like `pagurus host policy`."""
        return cast('OwnerPolicy', await self._call('PUT', f'/hosts/{_quoted(host)}/policy', _texts({}), body, idempotency_key))

    async def set_policy(self, body: RulesAsked, *, idempotency_key: Optional[str] = None) -> Policy:
        """Set the policy in force. Like `pagurus policy set`."""
        return cast('Policy', await self._call('PUT', f'/policy', _texts({}), body, idempotency_key))

    async def set_user(self, user: str, body: UserAsked, *, idempotency_key: Optional[str] = None) -> Answer:
        """Add a user, or change one. Like `pagurus user add`."""
        return cast('Answer', await self._call('PUT', f'/users/{_quoted(user)}', _texts({}), body, idempotency_key))

    async def show_checkpoint(self, checkpoint: str) -> Checkpoint:
        """Show a checkpoint with the part of each guest. Like `pagurus checkpoint show`."""
        return cast('Checkpoint', await self._call('GET', f'/checkpoints/{_quoted(checkpoint)}', _texts({}), None, None))

    async def show_guest(self, guest: str) -> Guest:
        """Show one guest."""
        return cast('Guest', await self._call('GET', f'/guests/{_quoted(guest)}', _texts({}), None, None))

    async def show_host(self, host: str) -> Host:
        """Show one host."""
        return cast('Host', await self._call('GET', f'/hosts/{_quoted(host)}', _texts({}), None, None))

    async def show_host_policy(self, host: str) -> OwnerPolicy:
        """Show one host."""
        return cast('OwnerPolicy', await self._call('GET', f'/hosts/{_quoted(host)}/policy', _texts({}), None, None))

    async def show_job(self, job: str) -> JobDetail:
        """Show what a job's ranks do, and how moves affected them. Like `pagurus job show`."""
        return cast('JobDetail', await self._call('GET', f'/jobs/{_quoted(job)}', _texts({}), None, None))

    async def show_move(self, move: str) -> Move:
        """Show a move: its phases, what it sent, the downtime. Like `pagurus move show`."""
        return cast('Move', await self._call('GET', f'/moves/{_quoted(move)}', _texts({}), None, None))

    async def show_policy(self, policy: str) -> Policy:
        """Show what a policy does. Like `pagurus policy show`."""
        return cast('Policy', await self._call('GET', f'/policies/{_quoted(policy)}', _texts({}), None, None))

    async def show_quota(self) -> Output:
        """Show how much output, checkpoints and images are kept, of whom, by how much jobs have grown, and what may be. Like `pagurus quota`."""
        return cast('Output', await self._call('GET', f'/quota', _texts({}), None, None))

    async def show_score(self) -> Calibration:
        """Show how good past predictions were."""
        return cast('Calibration', await self._call('GET', f'/score', _texts({}), None, None))

    async def show_usage(self, *, since: Optional[str] = None, by: Optional[str] = None, user: Optional[str] = None, host: Optional[str] = None) -> UsageReport:
        """Show what users, jobs and hosts used: processors, memory, moves, energy. Like `pagurus usage`."""
        return cast('UsageReport', await self._call('GET', f'/usage', _texts({'since': since, 'by': by, 'user': user, 'host': host}), None, None))

    async def signal_job(self, job: str, *, signal: Optional[str] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Send a signal to the ranks of a job. Like `pagurus job signal`."""
        return cast('Answer', await self._call('POST', f'/jobs/{_quoted(job)}/signal', _texts({}), _given({'signal': signal}), idempotency_key))

    async def submit_job(self, *, now: Optional[bool] = None, spec: Optional[JobSpec] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Run an MPI program in guests, as mpirun would. Like `pagurus job run`."""
        return cast('Answer', await self._call('POST', f'/jobs', _texts({}), _given({'now': now, 'spec': spec}), idempotency_key))

    async def suspend_job(self, job: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Suspend a running job: keep its state, and free its hosts. Like `pagurus job suspend`."""
        return cast('Answer', await self._call('POST', f'/jobs/{_quoted(job)}/suspend', _texts({}), None, idempotency_key))

    async def take_checkpoint(self, job: str, *, copy: Optional[SealedCopy] = None, idempotency_key: Optional[str] = None) -> Answer:
        """Have vaults get ready for a copy of a checkpoint that comes back."""
        return cast('Answer', await self._call('POST', f'/jobs/{_quoted(job)}/copies', _texts({}), _given({'copy': copy}), idempotency_key))

    async def undrain_host(self, host: str, *, idempotency_key: Optional[str] = None) -> Answer:
        """Let a drained host run guests again. Like `pagurus host undrain`."""
        return cast('Answer', await self._call('POST', f'/hosts/{_quoted(host)}/undrain', _texts({}), None, idempotency_key))

    async def wait_for_job(self, job: str) -> Job:
        """Wait for jobs to end. Like `pagurus job wait`."""
        return cast('Job', await self._call('GET', f'/jobs/{_quoted(job)}/wait', _texts({}), None, None))

    async def who_am_i(self) -> Who:
        """Show who you are to the controller. Like `pagurus whoami`."""
        return cast('Who', await self._call('GET', f'/whoami', _texts({}), None, None))
