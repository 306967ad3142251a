"""The vocabulary of the stories, as plain data; plots.py combines the words."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


SHE_NAMES = _words(
    "Mila Nora Lily Rosa Tilly Ella Daisy Wanda Greta Hazel Ivy Penny Ruby Clara Bella Molly Fern Poppy Luna Olive "
    "Stella Hilda Maja Lotte Emma Anna Flora Betty Dora Susi Pearl Kitty Nelly Willow Zelda Mimi Ada Cleo Tessa Juna "
    "Mia Alma Bea Dina Edith Frida Helen Ida Jenny Klara Lena Marta Nina Paula Rita Sally Tina Vera Wilma Zoe"
)
HE_NAMES = _words(
    "Pip Otto Max Finn Leo Sam Ben Tom Oscar Hugo Felix Bruno Theo Milo Jasper Rufus Toby Gus Arlo Emil Fritz Oliver "
    "Barney Charlie Albert Henry Bobo Kaspar Louis Ned Rocco Ziggy Waldo Alfie Monty Paul Anton Moritz Hank Jonas "
    "Adam Basil Carl David Eric Fred Harry Igor Jack Karl Lars Martin Nick Olaf Peter Quinn Tim Victor Willy Yuri"
)
NAME_PARTS = (
    _words("B D F G J K L M N P R S T V Z Br Fl Kl Tr"),
    _words("a e i o u"),
    _words("b d f g k l m n p r s t v z ll mm nn rr"),
    _words("a o i e y in el us ix"),
)
"""Parts of made-up names such as "Talo" or "Brimmin": one of each."""

ANIMALS = _words(
    "fox bear mouse rabbit hedgehog squirrel badger frog duck goose hen cat dog pig goat sheep donkey pony cow otter "
    "beaver mole turtle crab penguin seal lion tiger elephant giraffe monkey zebra camel kangaroo koala panda raccoon "
    "wolf deer snail dragon parrot crow swan hamster"
)
PEOPLE = _words(
    "baker farmer sailor tailor painter pirate knight teacher gardener fisher miller cobbler postman piper "
    "clown doctor wizard giant"
)
HELPERS = _words(
    "owl toad raven stork heron whale bee beetle spider butterfly ant worm bat lizard moose pelican peacock rooster "
    "lamb kitten puppy walrus octopus ghost robot"
)

TRAITS = _words(
    "small brave shy clever kind funny lazy busy curious cheerful gentle proud quiet noisy hungry sleepy merry polite "
    "stubborn careful young old tall round tiny patient dreamy honest silly fluffy serious lucky grumpy friendly bold "
    "wise calm jolly plump skinny nosy eager clumsy daring fearless forgetful generous graceful helpful humble lively "
    "loyal messy modest mighty nervous playful shaggy sneaky strong swift tidy thoughtful wild witty"
)
COLOURS = _words("red blue green yellow golden silver white brown purple orange pink black striped spotted")
LOOKS = _words(
    "little big old new shiny round wooden soft tiny long funny warm pretty heavy light "
    "thin thick smooth rough dusty muddy crooked bent sparkling painted patched rusty lovely fancy plain strange"
)
THINGS = _words(
    "kite hat ball drum flute bell boat cup lamp book scarf blanket basket bucket umbrella spoon whistle button ring "
    "mirror clock box key coat pillow bottle trumpet wagon shovel ladder teapot broom feather shell stone map ribbon "
    "cushion puppet fiddle jar sock pencil brush candle chair "
    "lantern hammer needle thimble comb ladle rope wheel crown balloon doll pebble plate fork harp mug rug globe "
    "magnet telescope gong tray bag sponge"
)
PAIRS = _words("boots mittens skates slippers glasses shoes trousers")

PLACES = {
    "in": _phrases(
        "the forest,the garden,the meadow,the village,the valley,the market,the orchard,the park,the old castle"
    ),
    "by": _phrases(
        "the river,the lake,the sea,the pond,the old mill,the big rock,the waterfall,the crooked fence,the stone well"
    ),
    "on": _phrases("the hill,the island,the farm,the beach,the mountain,the wooden bridge,the sandy path"),
    "near": _phrases("the cave,the lighthouse,the windmill,the school,the bakery,the station,the harbour,the oak tree"),
}
HOUSES = _phrases(
    "a little house,a round house,a tiny cottage,a crooked hut,a hollow tree,a cosy den,an old barn,a tall tower,"
    "a yellow tent,a wooden wagon,a boat with a roof,a house full of clocks,a house with a blue door,a snug cabin"
)

FOODS = _phrases(
    "plum cake,apple pie,honey bread,carrot soup,cheese pie,berry jam,nut bread,pea soup,pumpkin pie,cherry cake,"
    "onion soup,lemon cake,ginger bread,mushroom stew,potato salad,chocolate pudding,rice pudding,pear tart,"
    "fish soup,butter toast,walnut cake,fig jam,corn bread,vanilla pudding,noodle soup,peach pie,rhubarb pie,bean stew,"
    "tomato soup,cabbage stew"
)
FRUITS = _words(
    "apples pears plums cherries berries nuts carrots turnips peas beans onions mushrooms lemons eggs cookies buns "
    "pancakes sausages grapes figs peaches oranges melons bananas radishes cucumbers walnuts strawberries muffins "
    "waffles"
)
NUMBERS = _words("two three four five six seven eight nine ten")

HOBBIES = _phrases(
    "sing in the rain,count the stars,collect shells,paint the fence,talk to the moon,jump over puddles,bake bread,"
    "read old maps,dance in the kitchen,climb trees,build towers,chase butterflies,sleep until noon,drink warm milk,"
    "water the flowers,tell jokes,whistle a tune,draw clouds,swim before breakfast,roll down the hill,polish spoons,"
    "watch the boats,pick flowers,feed the birds,hum while working,write long letters,ride on the wagon,plant beans,"
    "skip stones,weave baskets,knit socks,mend clocks,dig holes,slide on the ice,splash in the bath,carve wood,"
    "gather mushrooms,invent words,whisper to the trees,march in a circle,sail paper boats,learn songs by heart"
)
QUIRKS = _phrases(
    "always wore a green hat,never stopped talking,counted everything twice,sneezed at every flower,"
    "laughed at every joke,was late for everything,could eat all day,knew a song for every day,slept with one eye open,"
    "walked backwards on Sundays,kept a secret in every pocket,was afraid of spoons,said good night to the chairs,"
    "asked a hundred questions,carried a very small suitcase,snored like a trumpet,never lost a game of cards,"
    "wanted to be a pirate,wrote poems about soup,believed that the moon was a cheese,"
    "collected old keys,greeted every door,forgot everything but jokes,read the newspaper upside down,"
    "always smelled of cheese,hummed day and night,had never seen the sea"
)
TIMES = _phrases(
    "One sunny morning,One rainy morning,One cold evening,One windy day,One quiet afternoon,One summer day,"
    "One winter morning,One day in spring,One autumn day,Early one morning,One Monday,One foggy morning,One Sunday"
)
SKILLS = {
    "swim": "swam",
    "sing": "sang",
    "dance": "danced",
    "whistle": "whistled",
    "juggle": "juggled",
    "paint": "painted",
    "skate": "skated",
    "cook": "cooked",
    "read": "read",
    "yodel": "yodelled",
    "ride a bicycle": "rode a bicycle",
    "play the drum": "played the drum",
    "stand on one leg": "stood on one leg",
    "do a handstand": "did a handstand",
    "tell a good joke": "told a good joke",
    "play chess": "played chess",
    "knit": "knitted",
    "climb a rope": "climbed a rope",
    "blow bubbles": "blew bubbles",
    "spin a plate": "spun a plate",
    "walk on stilts": "walked on stilts",
    "count backwards": "counted backwards",
}
FEARS = _phrases(
    "the dark,thunder,deep water,high ladders,big dogs,strange noises,the cellar,the wind,the long night,"
    "loud trumpets,the empty barn,spiders"
)
CONTESTS = {
    "the big race": "run",
    "the singing contest": "sing",
    "the dancing contest": "dance",
    "the cooking contest": "cook",
    "the swimming race": "swim",
    "the jumping contest": "jump",
    "the painting contest": "paint",
    "the whistling contest": "whistle",
}
WISHES = {
    "as big as a house": ("could not fit through the door", "big"),
    "as small as a pea": ("almost fell into the soup", "small"),
    "as light as a feather": ("floated up to the ceiling", "light"),
    "as strong as ten horses": ("broke every door and every cup", "strong"),
    "as loud as thunder": ("woke up the whole village", "loud"),
    "as fast as the wind": ("ran past the house and could not stop", "fast"),
    "as bright as the sun": ("could not sleep, because it was never dark", "bright"),
    "as round as a ball": ("rolled all the way down the hill", "round"),
}
SIGHTS = _phrases(
    "the sea,the moon up close,the biggest tree in the world,the snow on the mountain,the king's palace,"
    "the dancing whales,the city of lamps,the end of the rainbow,the singing waterfall,the flying fish"
)
NOISES = _phrases("bump,hoot,squeak,rattle,splash,knock,creak,rumble,scratch,crash,thud,clatter,rustle")
GOOD_FEELINGS = _words("happy proud glad cheerful merry pleased joyful content relieved")
BAD_FEELINGS = _words("sad worried cross upset unhappy gloomy troubled miserable disappointed")
