// Consumer groups: who reads what, and how far each is behind.

const GROUP_TAGS = { moving: 'moving', stable: 'in_sync' };

const groupPath = (name) => `#/groups/${encodeURIComponent(name)}`;
const groupTag = ({ state: name }) => h('span', { class: `tag ${GROUP_TAGS[name] ?? 'kind'}`, title: GROUP_STATES[name] }, name.replaceAll('_', ' '));
const ago = (milliseconds) => milliseconds === null ? UNKNOWN : `${duration(nowMs() - milliseconds)} ago`;
const committed = (milliseconds) => milliseconds === null ? 'never' : ago(milliseconds);
const sumBehind = ({ behind, unknown, partitions }) => unknown === 0 ? exactly(behind) : [
  unknown < partitions && `at least ${exactly(behind)}`, h('div', { class: 'warning' }, `not known of ${count(unknown, 'partition')}`)];
const untoldGroups = (age) => age.error
  ? notice(`Groups cannot be told${age.as_of_ms ? ` (these are as of ${ago(age.as_of_ms)})` : ''}: ${age.error}`)
  : !age.as_of_ms && notice('Coordinators have not answered yet');
const firstOf = (shown, all, one) => shown < all ? `the first ${exactly(shown)} of ${count(all, one)}` : count(all, one);

const groupColumns = [
  ['Group', (group) => link(groupPath(group.group), group.group), 'name'],
  ['State', groupTag, 'nowrap'],
  ['Members', (group) => exactly(group.members), 'number wide'],
  ['Partitions', (group) => exactly(group.partitions), 'number wide'],
  ['Records behind', sumBehind, 'number'],
  ['Last commit', (group) => committed(group.committed_ms), 'number'],
];

// An answer is known by its age. Times in it are as of now, also while there is no newer one.
function groupParts(path, made) {
  return detailParts(path, (found) => [untoldGroups(found.age), made(found)], (found) => [found.age, Math.floor(nowMs() / DETAIL_MS)]);
}

function groupsView() {
  const page = { at: 0 }, chosen = { text: '' };
  let list = null;
  const search = h('input', { type: 'search', placeholder: 'name', 'aria-label': 'Show groups whose name has', oninput: (event) => { chosen.text = event.target.value.trim(); page.at = 0; list?.update(); } });
  const detail = groupParts('/api/groups', (found) => {
    if (!found.age.as_of_ms) return null;
    list = part(() => [chosen.text, page.at], () => {
      const listed = found.groups.filter((group) => group.group.includes(chosen.text));
      const caption = chosen.text ? count(listed.length, 'group') : firstOf(listed.length, found.count, 'group');
      return found.count ? table(caption, groupColumns, listed, page, () => list.update()) : h('p', { class: 'faint' }, 'no group has read anything');
    });
    list.update();
    return list.element;
  });
  const elements = detail.parts.map((each) => each.element);
  const box = h('section', { class: 'card' }, h('div', { class: 'bar' }, search), elements);
  return view('Groups', heading('Groups'), { parts: [{ element: box, update: () => detail.parts.forEach((each) => each.update()) }], stop: detail.stop });
}

// The groups that read a topic: how they stand in it.
function groupsOfTopic(topic) {
  const page = { at: 0 };
  return groupParts(`/api/groups?topic=${encodeURIComponent(topic)}`, (found) => {
    const list = part(() => page.at, () => table(firstOf(found.groups.length, found.count, 'group'), groupColumns, found.groups, page, () => list.update()));
    list.update();
    return found.age.as_of_ms && card('Groups that read it', found.count ? list.element : h('p', { class: 'faint' }, 'none'));
  });
}

function groupView(name) {
  const page = { at: 0 }, members = { at: 0 };
  const detail = groupParts(`/api/groups/${encodeURIComponent(name)}`, (found) => {
    const group = found.summary;
    const who = part(() => members.at, () => table(firstOf(found.members.length, group.members, 'member'), [
      ['Member', ([member, , , , , isConnected]) => [member, !isConnected && h('div', { class: 'warning' }, 'not connected')], 'name'],
      ['Host', ([, host]) => host, 'name wide'],
      ['Partitions', ([, , partitions]) => exactly(partitions), 'number'],
      ['Hands over', ([, , , handsOver]) => exactly(handsOver), 'number'],
      ['Heard of', ([, , , , heard]) => ago(heard), 'number'],
    ], found.members, members, () => who.update()));
    const list = part(() => page.at, () => table(firstOf(found.partitions.length, group.partitions, 'partition'), [
      ['Partition', ([topic, number]) => [link(topicPath(topic), topic), ' ', link(partitionPath(topic, number), number)], 'name'],
      ['Member', ([, , , , , , member]) => member ?? h('span', { class: 'faint' }, 'none'), 'name'],
      ['Position', ([, , offset]) => exactly(offset), 'number wide'],
      ['End', ([, , , end]) => exactly(end), 'number wide'],
      ['Behind', ([, , , , behind]) => exactly(behind), 'number'],
      ['Committed', ([, , , , , milliseconds]) => committed(milliseconds), 'number'],
    ], found.partitions, page, () => list.update()));
    who.update();
    list.update();
    return [
      card(null, facts(['State', groupTag(group), GROUP_STATES[group.state]], ['Records behind', sumBehind(group)], ['Last commit', committed(group.committed_ms)])),
      card('Members', group.members ? who.element : h('p', { class: 'faint' }, 'none')),
      card('Partitions', list.element),
    ];
  });
  return view(name, heading('Group ', name), detail);
}
