"""The plots: each is a start, then one of its mishaps, one of its turns and one of its ends.

Names in braces are slots that `generate.story` fills. The hero and the friend never share a pronoun, so "he" and "she"
always say who is meant; all others are named by their kind only.

Hero: {H} name, {hs} kind, {he} {him} {his} {self}. Friend: {F}, {fs}, {fhe} {fhim} {fhis}. Thing: {T} "red kite",
{thing} "kite", {aT} "a red kite" or "a pair of red boots", with {it} {them} {was} {is} in its number. Place: {P}
"the river", {at} "by the river". Helper: {a_helper} "an owl" where it comes up first and "the owl" later.
"""

from __future__ import annotations

from typing import NamedTuple


class Plot(NamedTuple):
    """Templates; `fits[i]` holds the indices of the turns that may follow mishap i. Starts and ends go with all."""

    name: str
    start: tuple[str, ...]
    mishaps: tuple[str, ...]
    fits: tuple[str, ...]
    turns: tuple[str, ...]
    ends: tuple[str, ...]


OPENINGS = (
    "Once upon a time there was a {trait} {hs} named {H}. {H} lived in {house} {home}.",
    "Once upon a time, in {house} {home}, there lived a {trait} {hs} named {H}.",
    "{H} was a {trait} {hs} who lived in {house} {home}.",
    "Long ago a {hs} named {H} lived in {house} {home}. Everybody said that {H} was very {trait}.",
    "This is the story of {H}, a {trait} {hs} who lived in {house} {home}.",
    "There once was a {hs} named {H}, and nobody {home} was as {trait} as {he} was.",
)
HABITS = (
    "{He} liked to {hobby}.",
    "Every day {he} liked to {hobby} and to {hobby2}.",
    "Most of all {he} loved {food}.",
    "{He} loved to {hobby}, and {he} never said no to {food}.",
)
FRIENDS = (
    "{His} best friend was a {ftrait} {fs} named {F}, who {quirk}.",
    "{H} had a friend named {F}. {F} was a {ftrait} {fs} who {quirk}.",
    "Next door lived {F}, a {ftrait} {fs} who {quirk}.",
)
CLOSINGS = (
    "And from that day on, {H} and {F} were the best of friends.",
    "And if they have not gone to bed, they are still laughing today.",
    "That night {H} the {hs} slept very well, and so did {F} the {fs}.",
    '"What a day!" said {H}. "And tomorrow we do it again," said {F}.',
    "Then they ate {food} until the moon came up.",
    "{H} and {F} still tell this story when it rains.",
    '"You are a good friend," said {H}. "I know," said {F}, and they both laughed.',
    "Everybody {home} still talks about {H} the {hs} and {F} the {fs}.",
    "And {H} never forgot that a friend is worth more than {aT2}.",
    "And {a_helper}? {A_helper} got the biggest piece of {food}.",
    "Then {H} went home, closed the door and smiled.",
    "After that, {H} the {hs} was never {bad} again. Well, almost never.",
)

PLOTS = (
    Plot(
        "lost thing",
        (
            "{H} had {aT}, and {he} loved {them} more than anything. {Time} {he} took {them} to {P}.",
            "For {his} birthday {H} got {aT}. {Time} {he} went to {P} to show {them} to {F}.",
            "{Time} {H} found {aT} {at}. {He} took {them} everywhere, even to bed.",
        ),
        (
            'But a strong wind came and blew the {thing} away. "My {T}!" cried {H}. {He} ran after {them}, but the wind'
            " was faster.",
            "But when {he} sat down to eat {food}, the {thing} {was} gone. {H} looked under every leaf and behind every"
            " stone. {He} was very {bad}.",
            "Then {H} tripped over a root. The {thing} flew through the air and fell into the water with a splash."
            ' "Oh no!" cried {H}.',
            "But in the evening {H} could not find the {thing}. {He} looked in the kitchen, in the cellar and in the"
            " soup. {No_thing}.",
        ),
        ("01", "012", "1", "012"),
        (
            '{H} ran to {F}. "My {T} {is} gone," {he} said. "Then we must look for {them} together," said {F}. They'
            ' looked all day. At last they saw {a_helper} asleep in a tree, and the bed was the {T}! "I am sorry,"'
            ' said {a_helper}. "{They} {was} so soft and warm."',
            '"Do not cry," said {F}. {Fhe} asked everybody {at} for help. {A_helper} came and pulled the {T} out of'
            ' the mud. "{Is_this} yours?" asked {a_helper}. "Yes!" cried {H} and jumped for joy.',
            '{F} heard {him} crying and came at once. "Where did you see {them} last?" asked {F}. {H} thought and'
            ' thought. Then {F} began to laugh. "Look behind you," {fhe} said. The {T} {was} right there the whole'
            " time!",
        ),
        (
            "{H} was so {good} that {he} gave {F} a big hug.",
            '"Next time I will take better care of my {thing}," said {H}.',
            "{H} shared {his} {food} with {F} to say thank you.",
        ),
    ),
    Plot(
        "learning",
        (
            "{H} had one wish: {he} wanted to learn to {skill}. {Time} {he} went to {P} to try.",
            '"Everybody can {skill}, only I cannot," said {H}. So {time} {he} walked to {P} and tried.',
        ),
        (
            "But it went wrong. {He} fell on {his} nose, and {a_helper} laughed. {H} was very {bad}.",
            '{He} tried once, and {he} tried twice, and then {he} fell into the mud. "I will never learn to {skill},"'
            " said {H}.",
            "It looked so easy! But {he} lost {his} balance and landed in a basket of {fruits}.",
        ),
        ("012", "012", "012"),
        (
            '{F} came and sat down next to {him}. "When I was young, I could not {skill} at all," said {F}. "I fell'
            ' down {number} times. Try again!" So {H} tried again, a little better every day. And {number} days later,'
            " {H} {skilled} as if it were nothing.",
            '"You think too much," said {F}. "Close your eyes and count to {number}." {H} closed {his} eyes and'
            " counted. And then {he} {skilled}! {H} could not believe it.",
            'Then {a_helper} came along. "I will teach you to {skill}," said {a_helper}, "if you give me'
            ' {number} {fruits}." {H} ran to {F}, and {F} gave {him} the {fruits}. {A_helper} was a very good'
            " teacher. Soon {H} {skilled} better than anybody {at}.",
        ),
        (
            '"Look, {F}! I did it!" cried {H}. {F} clapped {fhis} hands.',
            "Now {H} teaches everybody who wants to {skill}.",
            "{H} was so {good} that {he} did it again and again until bedtime.",
        ),
    ),
    Plot(
        "gift",
        (
            'Soon it was the birthday of {F}. "I will make {food} for {F}," said {H}. {Time} {he} began.',
            '{Time} {F} was ill and lay in bed. "I will cook {food} for {fhim}," said {H} and put on a white hat.',
        ),
        (
            'But there were no {fruits} in the kitchen, not even one. "Without {fruits} it will taste like paper,"'
            " said {H}. {He} was very {bad}.",
            "But {H} forgot the oven, and soon the kitchen was full of black smoke. The {food} looked like an"
            " old shoe.",
            'But {H} put in salt and not sugar. {He} tasted a bit and made a terrible face. "Nobody can eat this,"'
            " said {H}.",
        ),
        ("012", "012", "012"),
        (
            'Then {a_helper} looked through the window. "I have {number} {fruits}," said {a_helper}, "and I do'
            ' not know what to do with them." They worked together all day. In the evening they carried a big plate of'
            " {food} to {F}.",
            "{H} walked to {P} and asked everybody for help. One gave {him} flour, one gave {him} milk, and {a_helper}"
            " gave {him} {number} {fruits}. So {he} tried again, and this time it smelled wonderful.",
            'So {H} took {aT} and gave {them} to {F}. "It was meant to be {food}," said {H}. {F} laughed so much that'
            ' {fhe} fell off the chair. "This is much better," {fhe} said.',
        ),
        (
            "{F} said that it was the best present in the world.",
            '{F} was very {good}. "You did all this for me?" asked {F}. "Of course," said {H}.',
            "They invited {a_helper} too, and nobody went home hungry.",
        ),
    ),
    Plot(
        "journey",
        (
            '{H} wanted to see {sight}. {Time} {he} packed {food} and {aT} and went to {F}. "Will you come with me?"'
            ' asked {H}. "Of course," said {F}.',
            '"I have never seen {sight}," said {H} to {F}. So {time} they took {aT} and {number} {fruits} and left'
            " home.",
        ),
        (
            'They walked and walked, but then they came to a wide river without a bridge. "What now?" asked {H}.',
            "Soon it began to rain, and they lost the path. Every tree looked like every other tree. {H} was {bad}.",
            'But {a_big_helper} stood in the way. "Nobody may pass," said {a_helper}, "without a riddle."',
            'After an hour their feet hurt, and the bag of food was empty. {H} sat down on a stone. "I am {bad}," said'
            " {he}.",
        ),
        ("01", "012", "01", "012"),
        (
            '{F} had an idea. "What goes up when the rain comes down?" asked {F}. "An umbrella!" laughed {a_helper}'
            ' behind a tree. "I like you two. I will carry you." And so they rode on the back of {a_helper}.',
            '"We have {aT}," said {F}. "Let us use {them}!" They gave the {T} to {a_old_helper}, and the'
            " {helper} showed them a secret way. And there it was: {sight}!",
            '"One step, and then one more," said {F}. {H} took one step, and then one more. They sang a song about'
            " {food}, and suddenly they were there. {H} opened {his} eyes wide.",
        ),
        (
            "It was even more beautiful than in the books. {H} was very {good}.",
            '"Was it worth it?" asked {F}. "Yes," said {H}, "but next time we take more {fruits}."',
            "They stayed until the stars came out, and then they walked home, hand in hand.",
        ),
    ),
    Plot(
        "fear",
        (
            "{H} was afraid of {fear}, but {he} told nobody. {Time} {F} asked {him} to come to {P}.",
            "There was one thing that {H} did not like at all, and that was {fear}. {Time} {he} stayed under the bed.",
        ),
        (
            "Then {H} heard a cry for help. It was {F}! {F} was stuck in a hole {at} and could not get out.",
            'Suddenly there was a loud {noise}. {H} began to shake. "It is only {fear}," said {F}, but {fhe} was'
            " shaking too.",
            'But {F} did not come home that evening. "I must find {fhim}," said {H}, "even if I am afraid of {fear}."',
        ),
        ("0", "23", "01"),
        (
            "{H} took a deep breath and counted to {number}. Then {he} took {aT} and went out. Step by step"
            " {he} came to"
            ' {P}. "Here I am!" called {H}. {F} had never been so glad to see a {hs}.',
            '"I am afraid too," said a small voice. It was {a_helper}. "Then let us be afraid together," said {H}.'
            " They went out side by side, and soon they found {F}, who was eating {fruits}.",
            "{H} began to sing, very softly at first and then very loudly. It helped! {H} sang all the way to"
            " {P}, and {F} sang too.",
            '"Look!" called {F}. It was only {a_helper} who had dropped {aT2}. "I am sorry," said {a_helper}, "I was'
            ' afraid of you." Then all three of them began to laugh, and {fear} did not matter any more.',
        ),
        (
            '"Are you still afraid of {fear}?" asked {F}. "A little," said {H}, "but I am bigger than my fear."',
            '"You are the bravest {hs} I know," said {F}. {H} was very {good}.',
            "Since then {H} is not afraid any more. Only sometimes, and then {he} sings.",
        ),
    ),
    Plot(
        "finding",
        (
            "{Time} {H} found {aT} {at}. There was a name on {them}, but the rain had washed it away.",
            '{Time} {H} went to {P}, and there {was} {aT} in the grass. "Who lost {them}?" asked {H}.',
        ),
        (
            '{He} asked {a_helper}. "{They} {is} not mine," said {a_helper}, "but may I have {them}?" "No," said'
            ' {H}, "I must find the owner."',
            "{H} wanted to keep the {T}. {He} hid {them} under the bed, but {he} could not sleep. {He} was {bad}.",
            "{He} put up a sign: Found, {aT}. But the next day {number} animals came, and all of them said that the"
            " {thing} {was} theirs.",
        ),
        ("02", "02", "012"),
        (
            'Then {he} saw {F}, who was looking for something in the grass. "Did you lose something?" asked {H}. "Yes,'
            ' my {T}," said {F}, "and my grandmother gave {them} to me." {H} gave {them} back at once.',
            '"Ask a question," said {F}. So {H} asked: "What {is} hidden inside?" Nobody knew, only a small'
            ' {helper}. "{Number} {fruits}," said {a_helper} in a small voice. And that was true!',
            'In the end {H} went to {F}. {F} looked at the {T} and laughed. "{They} {is} yours!" {fhe} said. "I bought'
            ' {them} for you, and then I lost {them} on the way."',
        ),
        (
            "There was {food} for everybody that evening.",
            '"You are an honest {hs}," said {F}, and {H} was very {good}.',
            "And {H} got a kiss on the nose.",
        ),
    ),
    Plot(
        "contest",
        (
            "{Time} {contest} was held {at}. {H} wanted to win, for the prize was {aT}.",
            '{H} and {F} both wanted to win {contest} {at}. "I will win," said {F}, "nobody can {do} as I can."',
        ),
        (
            "They began to {do}. {H} was the best of all. But just before the end, {he} heard a cry. {F} had"
            " fallen into"
            " the mud.",
            "{H} could {do} very well, but then a bee sat down on {his} nose. {H} did not dare to move.",
            "Everybody came to watch. But when {H} began to {do}, {his} trousers fell down, and everybody laughed. {H}"
            " was very {bad}.",
        ),
        ("0", "23", "12"),
        (
            "{H} did not think twice. {He} turned around and helped {F}. So they came last, both of them. But"
            " {a_helper}"
            ' gave them the prize. "A good friend is the best winner," said {a_helper}.',
            '"Laugh with them," whispered {F}. So {H} laughed, made a deep bow and did it all again. Everybody clapped,'
            " and {a_helper} gave {him} the prize for the funniest {hs}.",
            'In the end {a_helper} won, who had slept the whole time. "How did you do it?" asked {H}. "I have no'
            ' idea," said {a_helper}. Then {H} and {F} had to laugh.',
            '"Do not move," whispered {F} and held up a flower, and the bee flew to it. Then {H} and {F} began to {do}'
            ' together, side by side. "You both win," said {a_helper}, and everybody clapped.',
        ),
        (
            "In the evening there were {number} {fruits} for everybody, and {H} was very {good}.",
            '"Next year we do it again," said {F}. "Next year we laugh even more," said {H}.',
            "It was the best contest of all, and {H} was very {good}.",
        ),
    ),
    Plot(
        "sharing",
        (
            "{Time} {H} had {number} {fruits}, and {he} did not want to share. {He} sat down {at} to eat them alone.",
            '{Time} {H} baked {food}. It smelled so good that {F} came to the window. "It is all mine," said {H}.',
        ),
        (
            "{He} ate and ate, and then {his} belly hurt. {H} rolled on the floor and was very {bad}.",
            "But {a_helper} came, took everything and ran away. Now {H} had nothing at all.",
            "{He} ate so much that {he} got stuck in the door. {He} could not go in, and {he} could not go out.",
        ),
        ("23", "1", "0"),
        (
            '{F} heard the noise and came at once. {Fhe} pulled and pushed until {H} was well again. "Why do you help'
            ' me?" asked {H}. "Because you are my friend," said {F}.',
            "{F} had one small piece of bread. {Fhe} broke it in two and gave {H} the bigger half. {H} turned"
            " red to the"
            ' ears. "I am sorry," {he} said.',
            '"Alone is no fun," said {H}. {He} went to {F} and knocked at the door. "Will you eat with me?" asked'
            ' {he}. "I thought you would never ask," said {F}.',
            '{F} came with a cup of hot tea. "Eat less and laugh more," said {F} and told {him} {number} jokes.'
            " {H} gave"
            " {fhim} everything that was left, and it was still enough for {a_helper} too.",
        ),
        (
            "Since that day {H} always cuts the {food} in two.",
            "They shared everything, and it tasted twice as good.",
            '"Two halves taste better than one whole," said {H}.',
        ),
    ),
    Plot(
        "monster",
        (
            '{Time} {H} heard a {noise} behind the house. "A monster!" {he} cried and ran to {F}.',
            "Everybody said that a monster lived {at}. {Time} {H} saw two big eyes in the dark and ran to {F}.",
        ),
        (
            "{F} took {aT}, and {H} took a big spoon. They went on tiptoe. Then there was a {noise} again, much"
            " louder!",
            '"How big is it?" asked {F}. "As big as {number} houses," said {H}. Then the light went out.',
            "They locked the door and put a chair in front of it. But something scratched at the window.",
        ),
        ("01", "012", "12"),
        (
            '"Please do not hurt me," said the monster. It was only {a_small_helper} with a cold. "I lost my way, and'
            ' I am hungry." {H} gave {a_helper} a plate of {food}.',
            '{H} lit a candle, and what did they see? {A_helper} with {aT2}! "Good evening," said {a_helper}. "Is this'
            ' the way to {P}?"',
            '{F} opened the door with one pull. There stood {a_helper} with a cake. "I am your new neighbour," said the'
            ' {helper}. "I knocked for an hour!"',
        ),
        (
            '"I was not afraid at all," said {H}. "Then why are you under the table?" asked {F}.',
            "From then on there were three friends, and the smallest was the monster.",
            "They drank tea together, and {H} was very {good}.",
        ),
    ),
    Plot(
        "rescue",
        (
            "{Time} {H} was on the way to {P} when {he} heard a cry. It was {F}! {F} sat high up in a tree.",
            "{Time} {F} wanted to catch a star. {Fhe} climbed on the roof with {aT}, and then {fhe} could not"
            " get down.",
        ),
        (
            '{H} tried to climb up, but {he} slipped and fell into a bush. "Ouch!" cried {H}.',
            "{H} took a long ladder, but it broke in the middle. Now they were both stuck.",
            "{H} pulled and shook and called, but nothing helped. It began to rain, and {F} was very {bad}.",
        ),
        ("02", "13", "02"),
        (
            "Then {H} had an idea. {He} ran home and came back with a big blanket. {Number} animals held it tight."
            ' "Jump!" they called. {F} closed {fhis} eyes and jumped. It was so much fun that {fhe} did it again.',
            '{A_helper} came by. "Why do you not use the stairs?" asked {a_helper}. {H} and {F} looked behind them.'
            " There really were stairs.",
            '"I will tell you a joke," called {H}. It was a very good joke about {food}. {F} laughed and laughed, and'
            " fell down right into the arms of {H}.",
            '{H} and {F} began to sing a sad song, and they sang so badly that {a_helper} came running. "I will'
            ' help you,"'
            ' said {a_helper}, "if you stop singing." That was a fair trade, and soon they were on the ground again.',
        ),
        (
            '"Thank you, {H}," said {F}. "Next time I will stay on the ground."',
            "{F} gave {him} {number} {fruits}, and {H} was very {good}.",
            "{F} baked {food} for {H}, and it was delicious.",
        ),
    ),
    Plot(
        "birthday",
        (
            "It was the birthday of {H}, but nobody said a word. Even {F} only said good morning and went away.",
            '{H} woke up early, for it was {his} birthday. {He} ran to {F}. "I have no time today," said {F}.',
        ),
        (
            '{H} walked alone to {P} and was very {bad}. "They forgot me," {he} said to a stone.',
            "{He} baked {food} for {self}, but it tasted of tears.",
            "{H} sat down under a tree and counted {fruits}. Then it began to rain as well.",
        ),
        ("012", "1", "012"),
        (
            "In the evening {he} went home. The house was dark. Then there was a light, and {number} voices called:"
            ' "Surprise!" {F} came out of the cupboard with {aT} in {fhis} hands.',
            'Then {a_helper} came running. "Come quickly, {F} needs you!" cried {a_helper}. {H} ran as fast as {he}'
            " could. But {F} was not ill at all. {Fhe} stood next to the biggest {food} in the world.",
            'Suddenly the bush began to giggle. "Who is there?" asked {H}. Out came {F}, and then {a_helper}, and then'
            ' {number} more. "We hid here all day," said {F}, "and you did not see us!"',
        ),
        (
            "{H} laughed and cried at the same time. {He} was so {good}!",
            '"How could we forget you?" asked {F} and gave {him} {aT2}.',
            "They danced until the neighbours came, and then the neighbours danced too.",
        ),
    ),
    Plot(
        "magic wish",
        (
            '{Time} {H} helped {a_old_helper} over the road. "You have one wish," said {a_helper}. {H} did not think'
            ' long. "I want to be {wish}," {he} said. And so it was.',
            '{Time} {H} found a magic {thing} {at}. "I want to be {wish}!" said {H}. There was a {noise}, and it'
            " came true.",
        ),
        (
            'At first it was fun. But then {H} {trouble}. "This is not what I wanted," {he} said.',
            "{H} ran to show it to {F}. But {he} {trouble}, and {F} was frightened.",
            "But nobody wanted to play with a {hs} who was so {size}. {H} {trouble}, and {he} was {bad}.",
        ),
        ("012", "012", "012"),
        (
            '"Wish it back," said {F}. "I liked you as you were." So {H} wished it back, and everything was as'
            " before. Only {his} ears were still a little {size}.",
            '"There are no more wishes," said {a_helper}, "but a hug will help." So {F} gave {him} a long hug. One,'
            " two, three, and {H} was a normal {hs} again.",
            '{F} laughed. "Do you know what I wished for?" {fhe} asked. "I wished for a friend like you." Then {H}'
            " only wanted to be {self}. And in the morning {he} was.",
        ),
        (
            '"It is good to be me," said {H} and was very {good}.',
            "Now {H} only wishes for {food}.",
            '"Next time ask me first," said {F}.',
        ),
    ),
    Plot(
        "work",
        (
            "{H} wanted to earn {aT}. So {time} {he} began to work for {a_helper} {at}.",
            '{Time} {F} asked {H} to help {fhim} {at}. "You only have to carry {number} baskets of {fruits},"'
            " said {F}.",
        ),
        (
            "But {H} fell asleep in the sun, and a herd of goats ate all the {fruits}.",
            "But {H} carried too much at once. Everything fell down and rolled down the hill, and {H} rolled after it.",
            "{H} worked fast, too fast. {He} painted the door, the window and also the cat. {H} was very {bad}.",
        ),
        ("01", "01", "012"),
        (
            '"I made a mistake," said {H} in a small voice. "That is what friends are for," said {F}. They worked'
            " together until night, and then everything was in order again.",
            '{A_helper} looked at {him} for a long time and then began to laugh. "That happened to me too, when I was'
            ' young," said {a_helper} and gave {him} {aT}.',
            '{F} looked at it and clapped {fhis} hands. "How beautiful!" {fhe} said. Soon everybody wanted to have it'
            " just like that.",
        ),
        (
            '"Tomorrow I will do it slowly," said {H}.',
            "In the evening there was {food}, and {H} was very {good}.",
            "{H} got {number} coins and bought {food} for {F}.",
        ),
    ),
    Plot(
        "quarrel",
        (
            '{Time} {H} and {F} found {aT} {at}. "I saw {them} first," said {H}. "No, I did," said {F}.',
            '{Time} {F} broke the {T} of {H}. "You did that on purpose!" cried {H}. "I did not," said {F}.',
        ),
        (
            "They did not speak for {number} days. {H} played alone {at}, but it was no fun. {He} was very {bad}.",
            '{H} drew a line through the middle of the garden. "This is my side," {he} said, "and that is yours."',
            "They shouted so loudly that {a_helper} fell out of a tree.",
        ),
        ("012", "012", "012"),
        (
            "Then {F} put {food} in front of the door and ran away. {H} ate it all and thought for a long time. Then"
            ' {he} went to {F}. "I am sorry," said {H}. "Me too," said {F}.',
            "Then {a_helper} asked them for help, for the house under the tree was full of water. They carried"
            " buckets side by side."
            " When they were done, neither of them knew why they had been so cross.",
            "At night {H} wrote a letter: Dear {F}, I miss you. {He} opened the door to bring it to {F}. But"
            " there stood"
            " {F} with a letter too!",
        ),
        (
            "{H} and {F} hugged each other for a very long time.",
            '"A friend is better than {aT}," said {H}. {F} was very {good}.',
            "Then they played ball until it was dark.",
        ),
    ),
)
